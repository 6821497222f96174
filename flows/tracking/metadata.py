"""Metadata for MLflow: tags, parameters and system metrics of a run."""

from __future__ import annotations

import functools
import json
import logging
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pydantic_core import to_jsonable_python

from cloze.core import identity, processes
from cloze.core.accounts import user_name
from cloze.core.config import StageConfig
from cloze.core.identity import recorded_source
from cloze.flows.tracking.spool import flatten

# of the checkout; this module may be that of a run's copy of it
ROOT = Path(identity.__file__).resolve().parents[1]
GIT_SECONDS = 5.0


@functools.cache
def tags() -> dict[str, str]:
    """Return MLflow's and Cloze's tags: user, host, command, source, commit, modified or not."""
    values = {
        "mlflow.user": user_name(),
        "mlflow.source.name": "cloze",  # under Prefect, the program is its engine
        "mlflow.source.type": "LOCAL",
        "cloze.host": socket.gethostname(),
    }
    if (source := recorded_source()) is not None:
        values["cloze.source"] = source.name
    commit = _git("rev-parse", "HEAD") if (ROOT / ".git").exists() else None
    if commit:
        values["mlflow.source.git.commit"] = commit
        values["cloze.modified"] = str(
            bool(_git("status", "--porcelain", "--untracked-files=no"))
        ).lower()
    return values


def _git(*arguments: str) -> str | None:
    # the checkout may be a colleague's
    command = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", *arguments]
    try:
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=GIT_SECONDS
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None


# Config values that become MLflow parameters, by which runs are compared: few, with equal names in
# similar runs.

MOST = 100  # parameters per run
CHARACTERS = 500  # per value
OPEN = (None, "auto")  # values that the stage chooses; known when it ends


def of_node(config: StageConfig, axis_values: Mapping[str, Any]) -> dict[str, str]:
    fields = config.model_dump(mode="json").items()
    closed = {name: value for name, value in fields if value not in OPEN}
    plain = {name: value for name, value in closed.items() if type(value) in (str, int, float)}
    identity = config.fingerprint_fields().items()
    differing = {name: value for name, value in identity if value not in OPEN}
    axes = {axis: value for axis, value in axis_values.items() if axis not in plain}
    return shortened({**axes, **differing, **plain})


def resolved_values(config: StageConfig, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return what the stage chose for values that the config leaves open, such as learning_rate."""
    open_fields = [name for name, value in config.model_dump(mode="json").items() if value in OPEN]
    resolved = {name: summary.get(name) for name in open_fields}
    return shortened(
        {key: resolved[key] for key in resolved if isinstance(resolved[key], str | int | float)}
    )


def shortened(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as flat text, truncated to MLflow's limits."""
    texts = {}
    for name, value in flatten(values)[:MOST]:
        text = value
        if not isinstance(value, str):
            text = json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
        texts[allowed(name)] = text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
    return texts


def allowed(name: str) -> str:
    """Return the name with MLflow's characters: letters, digits and `_-./: `; `@` becomes `/`.

    Others become their code, `c#` is `c_23`, so that two labels have two names.
    """
    return "".join(
        letter
        if letter.isalnum() or letter in "_-./: "
        else "/"
        if letter == "@"
        else f"_{ord(letter):x}"
        for letter in str(name)
    )


def section_name(figure: str) -> str:
    """Return a single value's name in its section of MLflow's page: `result/f1`, `time/seconds`."""
    section = "time" if figure.endswith("seconds") else "result"
    return allowed(f"{section}/{figure}")


def curve_name(figure: str) -> str:
    """Return a curve's name: `loss/mlm_loss`. MLflow sorts sections; those without one are last."""
    sections = (("heldout", r"heldout|dev_"), ("loss", r"\w*(loss|accuracy)$"), ("time", "time_"))
    found = (section for section, pattern in sections if re.match(pattern, figure))
    return allowed(f"{next(found, 'progress')}/{figure}")


def metric_name(node: str, figure: str) -> str:
    """Return a metric's name in the run: `pretrain.heldout_loss`, `finetune/sst2-1.accuracy`."""
    return allowed(f"{node}.{figure}")


# System metrics are sampled from outside the node's processes, every few seconds, at no cost to
# them.

SECONDS, SOON = 10.0, 1.0
GB = 1e9

log = logging.getLogger(__name__)


class SystemMetricsSampler:
    """Thread that samples processes until it is closed.

    The first sample comes after a second, so that short nodes have one; the others at intervals.

    Args:
        report: called with each sample, values by name.
        directory: directory on the disk whose free space is reported.
    """

    def __init__(
        self,
        ids: Mapping[int, int],
        report: Callable[[Mapping[str, float]], None],
        directory: str,
        seconds: float = SECONDS,
    ) -> None:
        self._ids, self._report = dict(ids), report
        self._directory, self._seconds = directory, seconds
        self._before: dict[int, psutil.Process] = {}  # psutil computes CPU shares between two calls
        self._ended = threading.Event()
        self._gpus = _gpus()
        self._thread = threading.Thread(target=self._run, name="system-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(timeout=self._seconds)

    def _run(self) -> None:
        self.sample()  # starts the CPU measurement; its own values are 0
        try:
            wait = min(SOON, self._seconds)
            while not self._ended.wait(wait):
                self._report(self.sample())
                wait = self._seconds
        except Exception as error:  # metrics must not stop the run
            log.warning(
                "system metrics are no longer recorded: %s: %s", type(error).__name__, error
            )

    def sample(self) -> dict[str, float]:
        free = processes.free_memory(psutil.virtual_memory().available)
        metrics = {
            "system/cpu_percent": psutil.cpu_percent(),
            "system/memory_percent": 100.0 * (1.0 - free / processes.memory_limit()),
        }
        with suppress(OSError):
            metrics["system/disk_free_gb"] = psutil.disk_usage(self._directory).free / GB
        for rank, number in self._ids.items():
            with suppress(psutil.Error):
                cpu, rss = self._of_tree(number)
                metrics |= {
                    f"system/rank{rank}_cpu_percent": cpu,
                    f"system/rank{rank}_rss_gb": rss / GB,
                }
        for number, gpu in enumerate(self._gpus):
            with suppress(Exception):
                metrics |= {f"system/gpu{number}_{name}": value for name, value in gpu().items()}
        return metrics

    def _of_tree(self, number: int) -> tuple[float, int]:
        """Return the CPU percentage (100: one core) and resident bytes of a process tree."""
        root = self._before.setdefault(number, psutil.Process(number))
        cpu, rss = 0.0, 0
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                tracked = self._before.setdefault(process.pid, process)
                cpu += tracked.cpu_percent()
                rss += tracked.memory_info().rss
        return cpu, rss


def _gpus() -> list[Callable[[], dict[str, float]]]:
    """Return a query function for each GPU; empty without NVIDIA's library."""
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]

        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
    except Exception:
        return []

    def ask(handle: Any) -> Callable[[], dict[str, float]]:
        return lambda: {
            "utilization_percent": float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "memory_gb": pynvml.nvmlDeviceGetMemoryInfo(handle).used / GB,
        }

    return [ask(handle) for handle in handles]
