"""A machine of Hypothesis that starts, stops, kills and supersedes launches of one training."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from torch import Tensor

from cloze.core.artifacts import checkpoint_files, checkpoints, claim, fence, lock
from cloze.core.errors import ClozeError, SupersededError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.flows.launch import coordinator
from cloze.flows.launch.protocol import Launcher, LaunchRequest
from cloze.flows.launch.slurm import job as slurm_job
from cloze.flows.launch.slurm import launcher as slurm
from cloze.model import checkpoint
from cloze.model.tensors import write_tensors
from cloze.model.train.distributed import World
from cloze.model.train.resume import saving, state
from cloze.model.train.spec.interfaces import START
from cloze.model.train.spec.progress import RunInfo, TrainerState
from tests.flows.toy import STAGE, ToyConfig
from tests.slurm_stand_in import Queue
from tests.tiny_models import tiny_config, write_tokenizer

HERE = "tests.faults.launches"


CONFIG = ToyConfig()


FINGERPRINT = STAGE.fingerprint(CONFIG, {})


class Left(BaseException):
    """The ranks, or the job, are on their way, and nobody follows them."""


class Ranks(Launcher):
    """A launcher whose ranks are `Rank`s. Attributes: begun: what it was asked to start."""

    def __init__(self) -> None:
        self.begun: list[LaunchRequest] = []

    def check(self, execution: Execution) -> None:
        del execution

    def start(self, work: LaunchRequest) -> NoReturn:
        assert not work.job.token, (
            "ranks have the token of an attempt, which ends when another one attaches to them"
        )
        self.begun.append(work)
        raise Left


class Submission(slurm.SlurmLauncher):
    """`--launcher slurm`, up to the moment at which the job is to be followed."""

    def start(self, work: LaunchRequest) -> NoReturn:
        super().start(work)
        raise Left


RANKS, SUBMISSION = Ranks(), Submission()


@dataclass
class Tensors:
    """What a `CheckpointSaver` asks of an engine."""

    number: int

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "w", torch.full((64,), float(self.number))

    def optimizer_state(self) -> Iterator[Any]:
        return iter(())


@dataclass
class Rank:
    """The only rank of a launch. Attributes: gate: closed while its host is frozen, before a file
    gets its name.
    """

    number: int
    token: str
    path: str
    tokenizer: str
    fenced: bool
    gate: threading.Event = field(default_factory=threading.Event)
    saver: Any = None
    step: int = 0
    frozen: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    def begin_to_save(self) -> None:
        world = World(
            0,
            1,
            torch.device("cpu"),
            fence=fence.Fence(self.path, self.token if self.fenced else ""),
        )
        if self.saver is None:
            resumed = state.resume(self.path, FINGERPRINT, world, [])
            self.step = 0 if resumed is None else resumed.progress.step
            run = RunInfo(
                fingerprint=FINGERPRINT, build="b", config={}, precision="fp32", compiled=False,
                engine="torch", zero=0,
                packages={}, start_position=START, data="d",
            )  # fmt: skip
            saved = checkpoint.Metadata(model=tiny_config(), heads={}, tokenizer=self.tokenizer)
            self.saver = saving.CheckpointSaver(self.path, world, saved=saved, run=run, keep=1000)
        self.saver.save_async(TrainerState(step=self.step + 1), frozenset(), Tensors(self.number))
        self.step += 1


GATES: dict[int, threading.Event] = {}


def gated(
    path: str,
    tensors: Mapping[str, Tensor],
    shapes: Any,
    commit: Callable[[], AbstractContextManager[None]],
) -> Any:
    """`write_tensors` of a rank whose host may freeze before the file gets its name."""

    @contextmanager
    def late() -> Iterator[None]:
        if "w" in tensors:
            GATES[int(tensors["w"][0])].wait()
        with commit():
            yield

    return write_tensors(path, tensors, shapes, late)


class Launches(RuleBasedStateMachine):
    """One directory, any number of processes that want to train in it."""

    fenced = True

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # saves wait for the disk
        self.root = Path(tempfile.mkdtemp(prefix="cloze-launches-", dir=memory))
        self.path = str(self.root / "out")
        self.queue = Queue(self.root / "queue")
        self.tokenizer = write_tokenizer(self.root / "tokenizer")
        self.lock: ExitStack | None = None  # of the coordinator that lives
        self.ranks: list[Rank] = []
        self.newest = ""  # the token of the newest launch
        self.accepted: dict[int, int] = {}  # step -> number of the rank whose checkpoint counts
        self.starts: dict[str, int] = {}  # of jobs
        self.before = os.environ["PATH"]
        os.environ["PATH"] = self.queue.path
        RANKS.begun.clear()
        GATES.clear()

    def teardown(self) -> None:
        for rank in self.ranks:
            rank.gate.set()
            if rank.saver is not None:
                rank.saver.close()
        self.release()
        os.environ["PATH"] = self.before
        shutil.rmtree(self.root)

    def release(self) -> None:
        if self.lock is not None:
            self.lock.close()
        self.lock = None

    def living_jobs(self) -> list[str]:
        return [job for job, state in self.queue.jobs().items() if state in ("PENDING", "RUNNING")]

    def begun(self) -> None:
        """A launch was started; it has ranks unless it is a job that waits."""
        self.newest = fence.read(self.path)
        for work in RANKS.begun:
            rank = Rank(len(GATES), work.token, self.path, self.tokenizer, self.fenced)
            GATES[rank.number] = rank.gate
            self.ranks.append(rank)
        RANKS.begun.clear()

    @initialize()
    def first(self) -> None:
        self.start("local")

    @rule(launcher=st.sampled_from(["local", "slurm"]))
    def start(self, launcher: str) -> None:
        """`cloze pretrain` or `cloze resume`, in a process of its own; its coordinator lives on."""
        down, jobs, held = (
            (self.queue.root / "down").exists(),
            self.living_jobs(),
            self.lock is not None,
        )
        stack, reason = ExitStack(), True
        try:
            stack.enter_context(lock.locked(self.path))
            build_id = claim.claim_directory(
                self.path, claim.Claim("toy", FINGERPRINT), force=False
            ).build
            execution = Execution(launcher=launcher, device="cpu")
            build = BuildContext(
                path=self.path,
                inputs={},
                execution=execution,
                fingerprint=FINGERPRINT,
                build_id=build_id,
            )
            coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")(CONFIG, build)
        except Left:
            assert not held, "two coordinators hold the directory"
            assert launcher == "slurm" or not jobs, f"jobs {jobs} live, and ranks were started here"
            self.lock = stack
            self.begun()
        except ClozeError as error:
            stack.close()
            submitted = launcher == "slurm" and (
                "did not confirm" in str(error) or "does not say" in str(error)
            )
            reason = held or down or bool(jobs) or submitted
            if submitted:  # perhaps
                self.begun()
        if not reason:
            raise AssertionError("it was refused for no reason")
        if fence.read(self.path) != self.newest:
            raise AssertionError("a start that was refused has superseded those that live")

    @precondition(lambda self: self.lock is not None)
    @rule()
    def coordinator_dies_or_its_lease_is_stale(self) -> None:
        self.release()

    @rule(how=st.sampled_from(["lose", "late", "down"]))
    def slurm_misbehaves(self, how: str) -> None:
        self.queue.misbehave(how)

    @rule()
    def slurm_is_well_again(self) -> None:
        for how in ("lose", "late", "down"):
            self.queue.misbehave(how, on=False)
        self.queue.appear()

    @precondition(lambda self: self.living_jobs())
    @rule(which=st.integers(0, 9))
    def slurm_forgets_a_job(self, which: int) -> None:
        jobs = self.living_jobs()
        self.queue.hide(jobs[which % len(jobs)])

    @precondition(lambda self: self.queue.jobs())
    @rule(which=st.integers(0, 9))
    def a_job_begins(self, which: int) -> None:
        states = {**self.queue.jobs("hidden"), **self.queue.jobs()}
        waiting = [job for job, state in self.queue.jobs().items() if state == "PENDING"]
        if not waiting or "RUNNING" in states.values():  # singleton
            return
        job = waiting[which % len(waiting)]
        self.queue.set(job, "RUNNING")
        start, self.starts[job] = self.starts.get(job, 0), self.starts.get(job, 0) + 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_JOB_ID", job)
            patch.setenv("SLURM_RESTART_COUNT", str(start))
            patch.setenv("SLURM_JOB_NODELIST", "n1")
            handler = signal.getsignal(signal.SIGTERM)
            try:
                slurm_job.main(f"{self.path}/_logs/slurm")
            except Left:
                self.begun()
            else:
                self.queue.set(job, "FAILED")
            finally:
                signal.signal(signal.SIGTERM, handler)

    @precondition(lambda self: "RUNNING" in self.queue.jobs().values())
    @rule(state=st.sampled_from(["PENDING", "NODE_FAIL", "COMPLETED"]))
    def slurm_loses_a_node(self, state: str) -> None:
        """Its rank may live on."""
        job = next(job for job, state in self.queue.jobs().items() if state == "RUNNING")
        self.queue.set(job, state)

    @precondition(lambda self: self.ranks)
    @rule(which=st.integers(0, 99))
    def coordinator_starts_its_ranks_again(self, which: int) -> None:
        launch = self.ranks[which % len(self.ranks)].token.partition(".")[0]
        try:
            found = fence.start_attempt(self.path, launch)
        except SupersededError:
            assert not self.newest.startswith(launch)
        else:
            assert self.newest.startswith(launch)
            RANKS.begun.append(
                LaunchRequest(job=None, worker="", processes=1, build=None, token=found.token)
            )  # type: ignore[arg-type]
            self.begun()

    @precondition(lambda self: self.ranks)
    @rule(which=st.integers(0, 99))
    def a_rank_saves(self, which: int) -> None:
        rank = self.ranks[which % len(self.ranks)]
        if not rank.frozen:
            self.save(rank)

    @precondition(lambda self: self.ranks)
    @rule(which=st.integers(0, 99))
    def a_rank_freezes_while_it_saves(self, which: int) -> None:
        rank = self.ranks[which % len(self.ranks)]
        if not rank.frozen:
            rank.gate.clear()
            rank.frozen = self.save(rank, wait=False)

    @precondition(lambda self: any(rank.frozen for rank in self.ranks))
    @rule()
    def the_frozen_awake(self) -> None:
        for rank in self.ranks:
            if rank.frozen:
                rank.frozen = False
                rank.gate.set()
                self.settle(rank)

    def save(self, rank: Rank, wait: bool = True) -> bool:
        """Whether the save has begun."""
        try:
            rank.begin_to_save()
        except SupersededError:
            self.refused(rank)
            return False
        if wait:
            self.settle(rank)
        return True

    def settle(self, rank: Rank) -> None:
        """Wait for the save under way."""
        try:
            rank.saver.wait()
        except SupersededError:
            self.refused(rank)
        else:
            assert rank.token == self.newest, (
                f"rank {rank.number} published although it was superseded"
            )
            self.accepted[rank.step] = rank.number

    def refused(self, rank: Rank) -> None:
        assert rank.token != self.newest, f"rank {rank.number} is the newest, and was refused"
        rank.gate.set()
        self.ranks.remove(rank)

    @invariant()
    def what_was_accepted_is_there_whole_and_nothing_else(self) -> None:
        found = {}
        for directory in checkpoints.complete_steps(self.path):
            checkpoint_files.verify(directory)
            found[checkpoints.parse_step(directory)] = int(checkpoint.weights(directory)["w"][0])
        assert found == self.accepted

    @invariant()
    def one_job_at_most_runs(self) -> None:
        assert list(self.queue.jobs().values()).count("RUNNING") <= 1


class Unfenced(Launches):
    """The same, where ranks do not compare their tokens."""

    fenced = False
