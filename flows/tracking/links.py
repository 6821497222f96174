"""Which run of MLflow is ours: the addresses of its page.

links/runs.jsonl    {"run": our id, "experiment": MLflow's id, "mlflow": MLflow's id of the run}
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path("links") / "runs.jsonl"  # below the spools' directory
MODE = "?workflowType=machine_learning"  # without it, MLflow's page takes every run for one of a language model's application


def remember(directory: Path, ours: str, experiment: str, theirs: str) -> None:
    """Note MLflow's ids of a run, unless they are noted."""
    if _find(directory, ours) != (experiment, theirs):
        (directory / FILE).parent.mkdir(exist_ok=True)
        with (directory / FILE).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"run": ours, "experiment": experiment, "mlflow": theirs}) + "\n")


def page(directory: Path, ours: str, server: str) -> str | None:
    """The address of a run's page on an MLflow server; None while MLflow has not been told of the run.

    Args:
        directory: the spools'.
        ours: our id: the build id of a node.
        server: `http://HOST:PORT`.
    """
    found = _find(directory, ours)
    return None if found is None else f"{server.rstrip('/')}/#/experiments/{found[0]}/runs/{found[1]}{MODE}"


def _find(directory: Path, ours: str) -> tuple[str, str] | None:
    path = directory / FILE
    if not path.exists():
        return None
    for line in reversed(path.read_text(encoding="utf-8", errors="replace").splitlines()):
        if ours in line:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry["run"] == ours:
                return str(entry["experiment"]), str(entry["mlflow"])
    return None
