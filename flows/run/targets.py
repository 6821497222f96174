"""TARGET arguments: a run, a node of a run, an artifact or a checkpoint.

demo, alice/demo            run, by name or by directory (runs/demo)
demo/finetune@sst2-1        node; demo/finetune: all nodes of a section or a stage
runs/demo/pretrain          artifact, finished or not; also a URL
W/pretrain/checkpoints/…    checkpoint
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloze.core.artifacts.lineage import containing_artifact
from cloze.core.artifacts.lock import is_locked
from cloze.core.errors import DataError, UsageError, did_you_mean
from cloze.core.links import linked
from cloze.core.places import runs_directory
from cloze.core.storage import has_scheme
from cloze.flows.graph import stages
from cloze.flows.graph.command import command_directory, run_folders
from cloze.flows.run import status_file
from cloze.flows.tracking.database import ARTIFACTS

FINGERPRINT_LENGTH = 12  # in the name of a directory, NODE-FINGERPRINT


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a TARGET argument names."""

    text: str
    run: str = ""  # name of the run; empty: not part of a run
    node: str = ""  # name of a node or section; empty: the run itself, or not part of a run
    # directory of the artifact or checkpoint; of a run or section, all artifacts
    paths: tuple[str, ...] = ()

    @property
    def is_run(self) -> bool:
        return bool(self.run) and not self.node

    @property
    def nodes(self) -> list[str]:
        """Nodes of the run whose artifacts these are, or contain these checkpoints."""
        artifacts = map(containing_artifact, self.paths) if self.run else ()
        return sorted({node_name(Path(path)) for path in artifacts})

    @property
    def path(self) -> str:
        """Directory of the artifact or checkpoint.

        Raises UsageError: the target is a run, or several nodes.
        """
        if self.is_run or len(self.nodes) > 1:
            example = f", such as {self.run}/{self.nodes[0]}" if self.nodes else ""
            raise UsageError(f"{self.text} has several artifacts; name one node{example}")
        return self.paths[0]


def resolve(text: str, *, in_any_run: bool = False) -> Target:
    """Return what a TARGET argument names.

    `in_any_run`: also accept a node, section or stage without its run.

    Raises:
        DataError: nothing has that name.
        UsageError: the directory of a run that is not below the runs directory.
    """
    runs = runs_directory()
    if has_scheme(text):
        return _of_store(text, runs)
    if text in run_names(runs):
        return _run(text, text, runs)
    if has_scheme(url := linked(text)):
        return _of_store(url, runs)
    if (
        Path(text).exists()
        or containing_artifact(text) != text  # such as a checkpoint that was pruned
        or status_file.newest(command_directory(runs, text)) is not None
    ):
        return _directory(text, runs)
    run, _, node = text.rpartition("/")
    if run in run_names(runs):
        paths = _artifacts(runs, run, node)
        if paths:
            return Target(text=text, run=run, node=node, paths=paths)
    if in_any_run and not run:
        matches = [path for name in run_names(runs) for path in _artifacts(runs, name, node)]
        if matches:
            return Target(text=text, paths=tuple(matches))
    names = target_names(in_any_run=in_any_run)
    raise DataError(
        f"{text!r} is not a run in {runs}, a node (RUN/NODE), or the directory of an artifact or"
        f" checkpoint; {did_you_mean(text, names, otherwise='`cloze status` lists the runs')}"
    )


def resolve_path(text: str, option: str = "") -> str:
    """Return the path of an artifact or checkpoint, given the path or RUN/NODE of `option`.

    Raises DataError: it names neither. On a store, the reader says so.
    """
    text = linked(text)
    if has_scheme(text) or Path(text).exists():
        return text
    if os.path.islink(text):
        raise DataError(f"{option}{text} is a link to {os.readlink(text)}, which does not exist")
    try:
        return resolve(text).path
    except DataError:
        near = [str(path) for path in Path(text).parent.glob("[!.]*")]
        hint = did_you_mean(text, [*near, *target_names()], otherwise="check the path")
        raise DataError(f"{option}{text} does not exist; {hint}") from None


def node_name(directory: Path) -> str:
    """Return the node of an artifact's directory, `NODE-FINGERPRINT`, or of the link `NODE`."""
    name, separator, fingerprint = directory.name.rpartition("-")
    return name if separator and len(fingerprint) == FINGERPRINT_LENGTH else directory.name


def run_names(runs: Path) -> list[str]:
    """Return the names of all runs, also of those without a record."""
    directories = (path for folder in run_folders(runs) for path in folder.glob("[!.]*/"))
    return sorted(
        status_file.name_of(runs, path)
        for path in directories
        if (path / status_file.DIRECTORY).is_dir() or any(_node_directories(path))
    )


def _is_begun(directory: Path) -> bool:
    """Return whether a directory is a run's, or that of a start which has no record yet."""
    return (directory / status_file.DIRECTORY).is_dir() or is_locked(str(directory))


def check_name(runs: Path, name: str) -> None:
    """Raise UsageError if a run of that name is below a run, has runs below it, or is MLflow's."""
    user = name.partition("/")[0]
    is_below = user != name and _is_begun(runs / user)
    is_mlflow = user.startswith(("mlflow.db", ARTIFACTS))
    is_folder = not _is_begun(runs / name) and any(map(_is_begun, (runs / name).glob("[!.]*/")))
    if is_below or is_mlflow or is_folder:
        owner = "a run" if is_below else "MLflow's records" if is_mlflow else "a folder of runs"
        raise UsageError(
            f"a run cannot be named {name}: {user} is the name of {owner}; choose another one"
        )


def target_names(*, in_any_run: bool = False) -> list[str]:
    """Return the names of runs and of their nodes, for completion and suggestions."""
    runs = runs_directory()
    names = []
    for run in run_names(runs):
        nodes = {node_name(Path(path)) for path in _node_directories(runs / run)}
        record = status_file.newest(runs / run) or {"nodes": {}}
        names += [run, *(f"{run}/{node}" for node in sorted({*nodes, *record["nodes"]}))]
    return [*names, *stages.TABLE] if in_any_run else names


def _run(text: str, name: str, runs: Path) -> Target:
    return Target(text=text, run=name, paths=tuple(_node_directories(runs / name)))


def _of_store(url: str, runs: Path) -> Target:
    """Return the target at a URL; its run, if a link of the run leads to it."""
    for link in (link for folder in run_folders(runs) for link in folder.glob("*/*")):
        if link.is_symlink() and f"{url}/".startswith(f"{os.readlink(link)}/"):
            run = status_file.name_of(runs, link.parent)
            return Target(text=url, run=run, node=link.name, paths=(url,))
    return Target(text=url, paths=(url,))


def _directory(text: str, runs: Path) -> Target:
    """Return the target at an existing path, or at the path of a command's artifact."""
    path = Path(text).absolute()
    names = {(runs / name).resolve(): name for name in run_names(runs)}
    if (path / status_file.DIRECTORY).is_dir():
        if path.resolve() not in names:
            raise UsageError(
                f"{text} is a run below {path.parent}, not below {runs}; set"
                f" CLOZE_RUNS_DIR={shlex.quote(str(path.parent))}"
            )
        return _run(text, names[path.resolve()], runs)
    artifact = Path(containing_artifact(str(path)))
    run = names.get(artifact.parent.resolve(), "")
    if run and (artifact.parent / status_file.DIRECTORY).is_dir():
        return Target(text=text, run=run, node=node_name(artifact), paths=(text,))
    return Target(text=text, paths=(text,))


def _artifacts(runs: Path, run: str, node: str) -> tuple[str, ...]:
    """Return the artifacts of a node, or of the nodes of a section or stage; the current first."""
    record = status_file.newest(runs / run) or {"nodes": {}}
    recorded = record["nodes"].get(node)
    current = []
    if recorded:
        path = str(recorded["artifact"])
        current = [path if has_scheme(path) else str(runs / run / Path(path).name)]
    elif (link := runs / run / node).is_symlink():
        url = linked(str(link))
        current = [url if has_scheme(url) else str(link.resolve())]
    matching = [
        directory
        for directory in _node_directories(runs / run)
        if _matches(node_name(Path(directory)), node)
    ]
    return tuple(dict.fromkeys([*current, *matching]))


def _matches(name: str, pattern: str) -> bool:
    """Check whether a node has that name, or belongs to that section or stage."""
    is_instance = "@" in pattern and name.startswith(f"{pattern}-")
    return name == pattern or name.partition("@")[0] == pattern or is_instance


def _node_directories(run: Path) -> Iterator[str]:
    """Yield the artifact directories of a run, `NODE-FINGERPRINT`; on a store, the newest ones."""
    for path in sorted(run.glob("*")):
        if has_scheme(url := linked(str(path))):
            yield url
        elif path.is_dir() and not path.is_symlink() and node_name(path) != path.name:
            yield str(path)
