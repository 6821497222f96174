"""Run pretraining in real processes: one of them after another in the same ranks, or as the worker
that `cloze` starts.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cloze.core.errors import StoppedError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter, StageResult
from cloze.core.stages.worker import Job
from cloze.model.train.config import PretrainConfig
from cloze.model.train.engines.torch import TorchEngine
from tests import warm, warm_forks

if TYPE_CHECKING:
    import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
STANDS = "CLOZE_TEST_STANDS"  # file that tells of a rank that stands still
NOTHING: Mapping[str, str] = {}
# Options of `Execution` for every engine and ZeRO stage
STAGES: Mapping[str, Mapping[str, Any]] = {
    **{f"zero{stage}": {"zero": stage} for stage in range(4)},
    **{f"fsdp{stage}": {"engine": "fsdp", "zero": stage} for stage in (2, 3)},
}
STILL = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def config(**values: Any) -> PretrainConfig:
    """A config for a run of seconds, in fp32, that keeps no checkpoint unasked."""
    model = {**TINY, **values.pop("model", {})}
    base = {
        "steps": 6,
        "global_batch": 8,
        "learning_rate": 3e-3,
        "precision": "fp32",
        "heldout_rows": 8,
        "keep_for_merge": 1,
        "model": model,
    }
    return PretrainConfig.model_validate({**base, **values})


def inputs_of(dataset: str | Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """A dataset, or several by name, and what else is read."""
    named = (
        {"dataset": dataset}
        if isinstance(dataset, str)
        else {f"dataset/{name}": path for name, path in dataset.items()}
    )
    return {**named, **more}


def job(
    config: PretrainConfig,
    dataset: str | Mapping[str, str],
    out: Path,
    fingerprint: str = "f" * 64,
    more: Mapping[str, str] = NOTHING,
    **execution: Any,
) -> Job:
    return Job(
        stage="pretrain",
        reference="cloze.model.train.stage:STAGE",
        config=config.model_dump(mode="json"),
        path=str(out),
        inputs=inputs_of(dataset, more),
        execution=Execution(**execution).model_dump(mode="json"),
        fingerprint=fingerprint,
    )


def asked(request: pytest.FixtureRequest, parameter: str) -> set[Any]:
    """What the tests of this module that run in this session have for a parameter: a fixture that
    many share makes no more than that.
    """
    items = [item for item in request.session.items if item.path == request.path]
    calls = [item.callspec for item in items if hasattr(item, "callspec")]
    return {call.params[parameter] for call in calls if parameter in call.params}


def environments(world: int) -> list[dict[str, str]]:
    if world == 1:
        return [dict(os.environ)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def start(
    command: Sequence[str], world: int, log: Path, **extra: str
) -> list[subprocess.Popen[bytes]]:
    """The ranks of a command, with their output in `log`: forks of a Python that has imported the
    libraries.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return [
            subprocess.Popen(
                [warm.python(), *command],
                cwd=REPOSITORY,
                env={**env, **extra},
                stdout=output,
                stderr=output,
            )
            for env in environments(world)
        ]


def worker(job: Job, world: int = 1, **extra: str) -> tuple[list[subprocess.Popen[bytes]], Path]:
    """Start the job as `cloze` does; returns the processes and their log."""
    directory = Path(job.path).with_name(Path(job.path).name + ".job")
    directory.mkdir(parents=True, exist_ok=True)
    job.write(str(directory / "job.json"))
    return start(
        ["-m", "cloze.model.worker", str(directory / "job.json")], world, directory / "log", **extra
    ), directory / "log"


def stand_still_when(holds: Callable[[], object]) -> None:
    """In a rank, before it trains: the first one goes on to no further step once this holds, and
    waits to be killed.
    """
    step = TorchEngine.step

    def waiting_step(self: TorchEngine, *arguments: Any) -> Any:
        if os.environ.get("RANK", "0") == "0" and holds():
            Path(os.environ[STANDS]).touch()
            time.sleep(900)
        return step(self, *arguments)

    TorchEngine.step = waiting_step  # type: ignore[assignment, method-assign]


def standing(prepare: str, place: Path) -> dict[str, str]:
    """What a process has in its environment that calls `module:function` first, which tells in
    `place` when it stands still.
    """
    return {warm_forks.PREPARE: prepare, STANDS: str(place / "stands")}


def kill_standing(processes: Sequence[subprocess.Popen[bytes]], place: Path) -> None:
    """Kill them all as soon as the first one stands still."""
    while not (place / "stands").exists():
        assert processes[0].poll() is None, "it has ended before"
        time.sleep(0.05)
    for process in processes:
        warm.kill(process)


@dataclass
class Here:
    """A run in this process, and what it reported."""

    build: BuildContext
    reports: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    outcome: StageResult | None = None

    @property
    def checkpoint(self) -> Path:
        return max(Path(self.build.path).glob("checkpoints/step-*"))

    def said(self, kind: str) -> str:
        return "\n".join(str(figures[kind]) for _, figures in self.reports if kind in figures)


def here(
    config: PretrainConfig,
    dataset: str | Mapping[str, str],
    out: Path,
    *,
    stop_at: int | None = None,
    fingerprint: str = "f" * 64,
    more: Mapping[str, str] = NOTHING,
    **execution: Any,
) -> Here:
    """Run the stage in this process; with `stop_at`, ask it to stop after that step, and expect
    that it does.

    Args:
        more: inputs beside the dataset.
    """
    from cloze.model.train.pretraining import run

    class Listener(Reporter):
        def progress(
            self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
        ) -> None:
            result.reports.append((done, dict(figures)))
            if done == stop_at and "learning_rate" in figures:
                os.kill(os.getpid(), signal.SIGTERM)

        def metrics(self, values: Mapping[str, Any]) -> None:
            result.metrics.append(dict(values))

    out.mkdir(parents=True, exist_ok=True)
    options = Execution.model_validate({"threads": 1, "device": "cpu", **execution})
    inputs = inputs_of(dataset, more)
    result = Here(
        BuildContext(
            path=str(out),
            inputs=inputs,
            execution=options,
            fingerprint=fingerprint,
            report=Listener(),
        )
    )
    try:
        result.outcome = run(config, result.build)
    except StoppedError:
        if stop_at is None:
            raise
    else:
        assert stop_at is None, "it did not stop"
    return result


def digests(checkpoint: Path) -> dict[str, str]:
    """The sha256 of every file of a checkpoint."""
    content = json.loads((checkpoint / "checkpoint.json").read_text())
    return {entry["path"]: entry["sha256"] for entry in content["files"]}


def run_all(jobs: Sequence[Job], world: int, stop_at: Sequence[int | None] | None = None) -> None:
    """Run the jobs one after another in the same `world` processes, which start only once."""
    with tempfile.TemporaryDirectory() as directory:
        file, log = Path(directory) / "jobs.json", Path(directory) / "log"
        file.write_text(
            json.dumps(list(zip(stop_at or [None] * len(jobs), map(_as_json, jobs), strict=True)))
        )
        processes = start(["-m", "tests.model.train.ranks", str(file)], world, log)
        codes = [process.wait(timeout=900) for process in processes]
        assert not any(codes), log.read_text()[-4000:]


def _as_json(job: Job) -> Mapping[str, Any]:
    return {name: getattr(job, name) for name in Job.__dataclass_fields__}


def _main() -> None:
    # Fills what `torch.empty` gives with NaN: memory that nobody wrote may change no training.
    torch.use_deterministic_algorithms(True, warn_only=True)
    for stop_at, values in json.loads(Path(sys.argv[1]).read_text()):
        item = Job(**values)
        execution = {name: value for name, value in item.execution.items() if value is not None}
        here(
            PretrainConfig.model_validate(item.config),
            {},
            Path(item.path),
            more=item.inputs,
            stop_at=stop_at,
            fingerprint=item.fingerprint,
            **execution,
        )


if __name__ == "__main__":
    _main()
