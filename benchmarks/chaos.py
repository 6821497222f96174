"""What a training on three hosts survives: `python -m benchmarks.chaos --steps 120`. Needs root,
iproute2, an OpenSSH server and gcc.

The hosts are network namespaces (`tests/hosts.py`). While a BERT-tiny trains on them by `--launcher
ssh --min-nodes 2`, one fault after another comes over it, each at the first checkpoint after the
one before is over:

    link     a host's cable is pulled for 20 s rank     a rank is killed clock    a host's time of
    day jumps an hour ahead, and stays there disk     one host can write no file until the ranks
    have ended of it shared   the shared disk is full until the ranks have ended of it pause    a
    host stands still (SIGSTOP to all that runs there) for 50 s: it is given up, and wakes up as a
    stranger host     a host is killed, its cable pulled at the same time

A host's clock and disk are wrong for its agent and its ranks alone (`tests/faulty_host.py`): hosts
share this machine's kernel.

Printed: for each fault the seconds from it to the next new step, the loss beside that of an
undisturbed training on the same hosts and of one process, and the goodput: the undisturbed
training's seconds over the disturbed one's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloze.core.artifacts import artifact
from cloze.model.checkpoint import load
from tests import faulty_host
from tests.faulty_host import FaultyHost
from tests.hosts import Hosts, hosts, missing
from tests.model.datasets import write_dataset

DISK_BYTES = 640 << 20
FAULTS = ("link", "rank", "clock", "disk", "shared", "pause", "host")
HOUR, PAUSE_SECONDS = 3600, 50.0


class Chaos:
    """A training on three hosts, and what comes over it."""

    def __init__(
        self, there: Hosts, faulty: FaultyHost, shared: Path, steps: int, every: int
    ) -> None:
        """Args: faulty: host b."""
        self.there, self.faulty, self.shared, self.steps, self.every = (
            there,
            faulty,
            shared,
            steps,
            every,
        )
        self._ahead = 0
        self._asleep: threading.Timer | None = None
        self.dataset = write_dataset(shared / "dataset")

    def command(self, out: Path, *more: Any) -> list[Any]:
        return [
            "pretrain", "--dataset", self.dataset, "--model", "bert-tiny", "--global-batch", 24,
            "--micro-batch", 4, "--precision", "fp32",
            "--device", "cpu", "--threads", 1, "--steps", self.steps, "--set", "warmup_steps=1",
            "--set", "heldout_rows=8",
            "--set", "log_every=1", "--out", out, *more,
        ]  # fmt: skip

    def launched(self, out: Path) -> list[Any]:
        more = ("--checkpoint-every", self.every, "--min-nodes", 2, "--restarts", 20)
        return self.command(out, *self.there.by("ssh"), *more)

    def run(self, out: Path, faults: tuple[str, ...]) -> tuple[float, dict[str, float]]:
        """Seconds of the training, and from each fault to the next new step."""
        began, waited = time.monotonic(), {}
        process = self.there.start(*self.launched(out))
        step = 0
        for fault in faults:
            self._until(lambda step=step: self._saved(out) > step, process)  # type: ignore[misc]
            if self._asleep is not None:
                self._asleep.join()
            step, at = self._step(out), time.monotonic()
            getattr(self, {"shared": "shared_disk"}.get(fault, fault))(process)
            step = max(step, self._step(out))  # those that were made before it did any harm
            self._until(lambda step=step: self._step(out) > step, process)  # type: ignore[misc]
            waited[fault] = time.monotonic() - at
            print(
                f"  {fault:<6} after step {step:>4}: {waited[fault]:6.1f} s to the next new step",
                flush=True,
            )
            step = self._step(out)
        _, output = process.communicate()
        if process.returncode:
            raise SystemExit(output)
        return time.monotonic() - began, waited

    def link(self, process: subprocess.Popen[str]) -> None:
        del process
        self.there.link("b", "down")
        time.sleep(20)
        self.there.link("b", "up")

    def rank(self, process: subprocess.Popen[str]) -> None:
        del process
        os.kill(self.there.ranks("b")[-1], signal.SIGKILL)

    def pause(self, process: subprocess.Popen[str]) -> None:
        """The others go on meanwhile."""
        del process
        self.there.signal("a", signal.SIGSTOP)
        self._asleep = threading.Timer(PAUSE_SECONDS, self.there.signal, ("a", signal.SIGCONT))
        self._asleep.start()

    def clock(self, process: subprocess.Popen[str]) -> None:
        del process
        self._ahead = HOUR
        self.faulty.has(seconds_ahead=self._ahead)

    def disk(self, process: subprocess.Popen[str]) -> None:
        self.faulty.has(seconds_ahead=self._ahead, full=True)
        self._until_ended(process)
        self.faulty.has(seconds_ahead=self._ahead)

    def shared_disk(self, process: subprocess.Popen[str]) -> None:
        ballast = self.shared / "ballast"
        with ballast.open("wb") as stream:
            try:
                while stream.write(b"\0" * (1 << 20)):
                    stream.flush()
            except OSError:
                pass
        self._until_ended(process)
        ballast.unlink()

    def _until_ended(self, process: subprocess.Popen[str]) -> None:
        """Until the ranks that run now have ended; two minutes at most."""
        ranks, deadline = set(self.there.ranks("b")), time.monotonic() + 120
        while (
            ranks & set(self.there.ranks("b"))
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)

    def host(self, process: subprocess.Popen[str]) -> None:
        del process
        self.there.kill("c")

    @staticmethod
    def _until(
        true: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 900
    ) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(
                    f"the training has ended, or stands still: {process.communicate()}"
                )
            time.sleep(0.1)

    @staticmethod
    def _step(out: Path) -> int:
        """Of the last log line."""
        lines = (
            (out / "metrics.jsonl").read_text().splitlines()
            if (out / "metrics.jsonl").exists()
            else []
        )
        whole = [line for line in lines if line.endswith("}")]
        return int(json.loads(whole[-1])["step"]) if whole else 0

    @staticmethod
    def _saved(out: Path) -> int:
        """Of the newest checkpoint."""
        return max(
            (
                int(path.parent.name.removeprefix("step-"))
                for path in out.glob("checkpoints/step-*/checkpoint.json")
            ),
            default=0,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--faults", default=",".join(FAULTS))
    options = parser.parse_args()
    if (why := missing() or faulty_host.missing()) is not None:
        raise SystemExit(why)
    print(
        f"{platform.node()}, {os.cpu_count()} cores, {options.steps} steps, a checkpoint every "
        f"{options.every}"
    )
    shared = Path(tempfile.mkdtemp(prefix="cloze-chaos-"))
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(shared)], check=True
    )
    try:
        directory = Path(tempfile.mkdtemp(prefix="cloze-net-"))
        faulty = FaultyHost(directory / "b")
        with hosts(directory, "a", "b", "c", environments={"b": faulty.environment}) as there:
            chaos = Chaos(there, faulty, shared, options.steps, options.every)
            undisturbed, _ = chaos.run(shared / "undisturbed", ())
            disturbed, waited = chaos.run(shared / "disturbed", tuple(options.faults.split(",")))
            code, output = there.cloze(*chaos.command(shared / "one"))
            assert code == 0, output
        report(shared, undisturbed, disturbed, waited)
    finally:
        subprocess.run(["umount", "-l", str(shared)], check=False)
        shutil.rmtree(shared, ignore_errors=True)


def report(shared: Path, undisturbed: float, disturbed: float, waited: dict[str, float]) -> None:
    names = ("undisturbed", "disturbed", "one")
    losses = {name: artifact.read_manifest(str(shared / name)).summary["loss"] for name in names}
    states = {name: load(str(shared / name)).state for name in names}
    print("loss: " + ", ".join(f"{name} {loss:.7f}" for name, loss in losses.items()))
    for name in ("undisturbed", "one"):
        far = max(
            float((value - states["disturbed"][key]).abs().max())
            for key, value in states[name].items()
        )
        print(
            f"disturbed and {name}: losses differ by {abs(losses['disturbed'] - losses[name]):.1e},"
            f" weights by at most {far:.1e}"
        )
    print(
        f"goodput {undisturbed / disturbed:.2f}: {undisturbed:.0f} s undisturbed, {disturbed:.0f} "
        f"s with {len(waited)} faults"
    )


if __name__ == "__main__":
    main()
