"""Many kills of small runs at random moments, each followed by the same command: what comes of it
must be what an undisturbed run makes.

    python -m tests.faults.soak --trainings 200 --data 100 --table runs/soak.md [--seed 1]
    [--seconds 3000]

A kill takes the whole tree (the verb and its ranks), or one rank, whose launcher then ends the
others. Moments are random in time; a part
of them is aimed at what is short: a save, an evaluation, the start, the time between the last part
and the manifest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cloze.core.artifacts import artifact, checkpoints
from tests import warm, warm_forks
from tests.conftest import REPOSITORY
from tests.faults.marks import MARK
from tests.faults.tally import Tally
from tests.model.datasets import lines, strip_timing, write_dataset
from tests.model.train.ranks import digests

STEPS, SAVES, LOOKS = 24, 3, 6
AIMS = ("any", "any", "any", "step", "saving", "measuring", "start", "manifest")
TINY = (
    "hidden_size=32",
    "num_attention_heads=2",
    "intermediate_size=48",
    "max_position_embeddings=40",
)


class Trainings:
    """`cloze pretrain` over two ranks."""

    name = "training"

    def __init__(self, forks: Forks, place: Path, chance: random.Random) -> None:
        self._forks, self._place, self._chance = forks, place, chance
        self._dataset = write_dataset(place / "dataset")
        self._mark = place / "mark"
        self.tally = Tally(self.name)
        began = time.monotonic()
        out = place / "straight"
        assert self._begin(out).wait() == 0, self.log()
        self.tally.undisturbed = time.monotonic() - began
        self._expected = self._made(out)

    def log(self) -> str:
        return (self._place / "log").read_text(errors="replace")[-3000:]

    def _begin(self, out: Path) -> subprocess.Popen[bytes]:
        self._mark.write_text("start")
        sizes = [word for name in TINY for word in ("--set", f"model.{name}")]
        return begin(
            self._place / "log",
            *(
                "pretrain",
                "--dataset",
                self._dataset,
                "--model",
                "bert-tiny",
                "--steps",
                STEPS,
                "--global-batch",
                8,
            ),
            *(
                "--precision",
                "fp32",
                *sizes,
                "--learning-rate",
                "3e-3",
                "--set",
                "heldout_rows=8",
                "--evaluate-every",
                LOOKS,
            ),
            *(
                "--processes",
                2,
                "--threads",
                1,
                "--device",
                "cpu",
                "--engine",
                "torch",
                "--checkpoint-every",
                SAVES,
            ),
            *("--set", "log_every=1", "--out", out),
            **{MARK: str(self._mark), warm_forks.PREPARE: "tests.faults.marks:marked"},
        )

    def _made(self, out: Path) -> tuple[object, ...]:
        """What must be the same bytes: weights and optimizer of every checkpoint that stays, and
        the figures of every log line.
        """
        kept = {
            (checkpoints.parse_step(directory), name): found
            for directory in checkpoints.complete_steps(str(out))
            for name, found in digests(Path(directory)).items()
            if name != "training/state.json"
        }
        told = [strip_timing(line) for line in lines(out / "metrics.jsonl")]
        return kept, told, artifact.verify(str(out)).ok

    def _moment(self, out: Path) -> str:
        if artifact.is_artifact(str(out)):
            return "over"
        found = checkpoints.complete_steps(str(out))
        if found and checkpoints.parse_step(found[-1]) == STEPS:
            return "manifest"
        return self._mark.read_text() or "step"

    def kill(self, number: int) -> None:
        """One kill, then the same command to the end."""
        out = self._place / f"run{number}"
        began = time.monotonic()
        while (moment := self._killed(out)) is None:
            shutil.rmtree(out)
        killed = time.monotonic()
        reached = len(lines_of(out / "metrics.jsonl"))
        again = self._begin(out)
        while self._mark.read_text() == "start" and again.poll() is None:
            time.sleep(0.01)
        self.tally.resumed.append(time.monotonic() - killed)
        ended = again.wait() == 0
        self.tally.wall += time.monotonic() - began
        saved = reached - reached % SAVES
        self.tally.useful, self.tally.done = (
            self.tally.useful + STEPS,
            self.tally.done + STEPS + reached - saved,
        )
        self.tally.killed[moment] += 1
        if ended and self._made(out) == self._expected:
            self.tally.equal[moment] += 1
            shutil.rmtree(out)
        else:
            print(
                f"NOT EQUAL: training {number}, killed in {moment}: {out}\n{self.log()}", flush=True
            )

    def _killed(self, out: Path) -> str | None:
        """The moment at which a run was killed; None: it was over before."""
        aim = self._chance.choice(AIMS)
        verb = self._begin(out)
        earliest = time.monotonic() + self._chance.uniform(0, 0.9 * self.tally.undisturbed)
        if aim == "start":
            earliest -= 0.8 * self.tally.undisturbed
        while True:
            moment = self._moment(out)
            if moment == "over" or verb.poll() is not None:
                verb.wait()
                self._forks.alone()
                return None
            if time.monotonic() > earliest and aim in ("any", moment):
                break
            if aim == "start" and moment != "start":
                aim = "any"
            time.sleep(0.001)
        time.sleep(self._chance.uniform(0, 0.01))
        moment = self._moment(out)
        first, *ranks = self._forks.living() or [verb.pid]
        if ranks and self._chance.random() < 0.3:
            end([self._chance.choice(ranks)])
            moment += " of one rank"
            verb.wait()
        else:
            end(self._chance.sample([first, *ranks], len(ranks) + 1))
            verb.wait()
        self._forks.alone()
        return None if artifact.is_artifact(str(out)) else moment


class DataStages:
    """`cloze corpus`, `vocab` and `dataset`, of small books."""

    name = "data stages"

    def __init__(self, forks: Forks, place: Path, chance: random.Random) -> None:
        self._forks, self._place, self._chance = forks, place, chance
        self.tally = Tally(self.name)
        self._straight = place / "straight"
        self._straight.mkdir(parents=True)
        self._seconds: dict[str, float] = {}
        self._expected: dict[str, str] = {}
        for stage in self._commands(self._straight):
            began = time.monotonic()
            assert self._begin(stage, self._straight).wait() == 0, self.log()
            self._seconds[stage] = time.monotonic() - began
            self._expected[stage] = artifact.read_manifest(
                str(self._straight / stage)
            ).content_sha256
        self.tally.undisturbed = statistics.fmean(self._seconds.values())

    def log(self) -> str:
        return (self._place / "log").read_text(errors="replace")[-3000:]

    def _commands(self, out: Path) -> Mapping[str, Sequence[object]]:
        done, books = self._straight, REPOSITORY / "samples" / "books"
        corpus = ("--corpus", done / "corpus")
        return {
            "corpus": ("corpus", "--source", f"books={books}", "--out", out / "corpus"),
            "vocab": ("vocab", *corpus, "--size", 600, "--out", out / "vocab"),
            "dataset": (
                "dataset",
                *corpus,
                "--tokenizer",
                done / "vocab",
                "--length",
                64,
                "--mask-copies",
                2,
                "--out",
                out / "dataset",
            ),
        }

    def _begin(self, stage: str, out: Path) -> subprocess.Popen[bytes]:
        return begin(self._place / "log", *self._commands(out)[stage])

    def kill(self, number: int) -> None:
        """One kill, then the same command to the end."""
        began, stage = time.monotonic(), self._chance.choice(list(self._expected))
        out = self._place / f"run{number}"
        while not self._killed(stage, out):
            shutil.rmtree(out)
        ended = self._begin(stage, out).wait() == 0
        self.tally.wall += time.monotonic() - began
        self.tally.killed[stage] += 1
        made = artifact.read_manifest(str(out / stage)).content_sha256 if ended else ""
        if made == self._expected[stage] and artifact.verify(str(out / stage)).ok:
            self.tally.equal[stage] += 1
            shutil.rmtree(out)
        else:
            print(f"NOT EQUAL: {stage} {number}: {out}\n{self.log()}", flush=True)

    def _killed(self, stage: str, out: Path) -> bool:
        out.mkdir(exist_ok=True)
        verb = self._begin(stage, out)
        time.sleep(self._chance.uniform(0, self._seconds[stage]))
        end(self._forks.living() or [verb.pid])
        verb.wait()
        self._forks.alone()
        return not artifact.is_artifact(str(out / stage))


class Forks:
    """The processes of what is begun here: what starts them hears of their end, see
    `tests.warm`.
    """

    def __init__(self) -> None:
        if os.environ.pop(warm.SHARED, ""):  # whose forks other tests have begun, too
            warm.nursery.cache_clear()
        self._others = set(warm.nursery().forks())

    def living(self) -> list[int]:
        """The verb and its ranks."""
        return [pid for pid in warm.nursery().forks() if pid not in self._others]

    def alone(self) -> None:
        """Wait until none lives."""
        while self.living():
            time.sleep(0.005)


def begin(log: Path, *arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    """Start a verb."""
    with log.open("wb") as output:
        command = [warm.python(), "-c", warm.ENTRY, *map(str, arguments)]
        return subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=output
        )


def end(pids: Sequence[int]) -> None:
    """SIGKILL, one after the other."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lines_of(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def soak(
    trainings: int,
    data: int,
    *,
    seed: int = 1,
    seconds: float | None = None,
    told: Callable[[list[Tally]], None] = lambda _: None,
) -> list[Tally]:
    """So many kills of each, the two kinds in turn. Args: seconds: no more are begun after them;
    told: hears of every kill.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="cloze-soak-") as directory:
        forks = Forks()
        kinds: list[tuple[Trainings | DataStages, int]] = []
        if trainings:
            (place := Path(directory) / "trainings").mkdir()
            kinds.append((Trainings(forks, place, chance), trainings))
        if data:
            (place := Path(directory) / "data").mkdir()
            kinds.append((DataStages(forks, place, chance), data))
        for number in range(max(trainings, data)):
            for kind, wanted in kinds:
                most = max(trainings, data)
                if number * wanted // most == (number + 1) * wanted // most or (
                    deadline and time.monotonic() > deadline
                ):
                    continue
                kind.kill(number)
                told([kind.tally for kind, _ in kinds])
        return [kind.tally for kind, _ in kinds]


def table(tallies: Sequence[Tally]) -> str:
    """What came of it, in Markdown."""
    rows = [row for tally in tallies for row in tally.rows()]
    words = [f"- {sentence}" for tally in tallies for sentence in tally.words()]
    return "\n".join(
        ["| killed | times | ended as undisturbed |", "|---|---|---|", *rows, "", *words, ""]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainings", type=int, default=200)
    parser.add_argument("--data", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--table", type=Path, default=Path("runs/soak.md"))
    given = parser.parse_args()

    def write(tallies: Sequence[Tally]) -> None:
        given.table.parent.mkdir(parents=True, exist_ok=True)
        given.table.write_text(table(tallies))

    found = soak(given.trainings, given.data, seed=given.seed, seconds=given.seconds, told=write)
    write(found)
    print(table(found))
    if any(tally.equal != tally.killed for tally in found):
        raise SystemExit("some did not end as the undisturbed run")


if __name__ == "__main__":
    main()
