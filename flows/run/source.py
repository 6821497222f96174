"""The source of a run: all processes that a start begins import the files of its beginning.

The files of a checkout or an editable install are copied to `RUNS/.source/HASH/`, once by content,
in the layout of a wheel. The copy is the first entry of `PYTHONPATH`, which reaches ranks, jobs,
agents and Beam workers. An installed package is no work in progress: its version is noted. So are
those of plug-ins.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

from rich.console import Console
from rich.markup import escape

from cloze.core import storage
from cloze.core.accounts import open_record, open_unlinked
from cloze.core.artifacts.lineage import containing_artifact
from cloze.core.errors import UsageError, describe_os_error
from cloze.core.identity import RECORDED, digest, package_root, recorded_source
from cloze.core.plugins import PACKAGE, own_version
from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.flows.data import DATA, FILES
from cloze.flows.run import status_file
from cloze.flows.run.targets import Target
from cloze.flows.views import terminal

FLOW_RUNS = ".flow-runs"  # of a runs directory: the source of each flow run's last start
RETAINED_FLOW_RUNS = 1000  # by `cloze clean`


def is_copy(source: str | None) -> TypeGuard[str]:
    """Return whether a recorded source is a copy; else it is a version, or nothing."""
    return os.path.isabs(source or "")


def describe(source: str) -> str:
    """Return a source for a message: the short hash of a copy, or a version."""
    return Path(source).name[:12] if is_copy(source) else f"version {source}"


def begin(directory: Path, runs: Path, screen: Console) -> str | None:
    """Fix the source of a start, and say whether the last start's differs; None: it is not fixed.

    `directory`: directory of the run's records, which gets the copy where `runs` cannot have it.
    """
    before = (status_file.newest(directory) or {}).get("source")
    try:
        now = fix(runs if directory.is_relative_to(runs) else directory)
    except OSError as error:
        reason = escape(describe_os_error(error, "source"))
        screen.print(f"[yellow]source: not recorded, so an edit reaches this run: {reason}[/]")
        return None
    if before and Path(before).name != Path(now).name:
        differs = f"{describe(now)}, and the last start had {describe(before)}"
        screen.print(f"[yellow]source: this start has {differs}[/]")
    if is_copy(now) and Path("cloze", "__init__.py").exists():  # `python -m` prefers it
        screen.print("[yellow]source: processes import ./cloze; start in another directory[/]")
    return now


def fix(runs: Path) -> str:
    """Let this process and those that it starts import the files that the package has now.

    Return their copy in `runs`, or the version of an installed package, which needs none.
    """
    root = package_root()
    if list(root.parent.glob(f"{PACKAGE.replace('-', '_')}-*.dist-info")):
        return own_version()
    files = _read(root, DATA if recorded_source() is None else None)
    target = runs.absolute() / RECORDED / digest(files)
    for name, content in files.items():
        path = target / name
        if not path.exists() or path.read_bytes() != content:  # several accounts may share `runs`
            _write(path, content)
    _import_from(target)
    return str(target)


def _read(root: Path, data: Path | None = None) -> dict[str, bytes]:
    """Return the content of a package's files by path in the copy, but for bytecode.

    `data`: folder of the files of `flows.data`, which a checkout has at its top.
    """
    tops = {"cloze": root}
    if data is not None:
        tops |= {f"cloze/flows/data/{name}": data / name for name in FILES}
    files = {}
    for name, top in tops.items():
        if top.is_file():
            files[name] = top.read_bytes()
        for folder, folders, names in os.walk(top, followlinks=True):
            folders[:] = [each for each in folders if each != "__pycache__" and each[0] != "."]
            for path in (Path(folder, each) for each in names):
                if path.name[0] != "." and path.suffix != ".pyc":  # editors leave hidden files
                    files[f"{name}/{path.relative_to(top)}"] = path.read_bytes()
    return files


def _write(path: Path, content: bytes) -> None:
    """Write a file that nobody edits by mistake, such as from a traceback."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")  # other processes may import the file
    with open(aside, "wb", opener=open_unlinked) as stream:
        stream.write(content)
    aside.chmod(stat.S_IMODE(aside.stat().st_mode) & ~0o222)
    aside.replace(path)


def _import_from(source: Path) -> None:
    """Let all that this process starts, and its own later imports, take the copy."""
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    others = [path for path in paths if Path(path).parent.name != RECORDED]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(source), *others])
    _import_later(source)


def _import_later(source: Path) -> None:
    """Let this process import from the copy what it has not imported yet."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "cloze" and hasattr(module, "__path__"):
            module.__path__ = [str(source.joinpath(*name.split("."))), *module.__path__]


def enter(target: Target, runs: Path) -> None:
    """Begin this command anew in the source that a run or training had, unless it is this one.

    Raises UsageError: the copy is gone or was changed.
    """
    if target.is_run:
        recorded = status_file.read(runs, target.run).get("source")
    else:
        job_file = storage.join(containing_artifact(target.path), LOGS, JOB)
        recorded = Job.read(job_file).source if storage.exists(job_file) else ""
    if taken := _take(recorded, runs, "--current-source goes on with today's"):
        terminal.console().print(f"source: {taken}, as recorded", markup=False)
        os.execv(sys.executable, [sys.executable, "-m", "cloze", *sys.argv[1:]])


def remember(flow_run: str, recorded: str | None, runs: Path) -> bool:
    """Record the source of a start of a Prefect flow run, for `retake`; a full disk is ignored.

    Return whether an earlier start was recorded, or there is no copy to record.
    """
    if not is_copy(recorded):
        return True
    note = runs / FLOW_RUNS / flow_run
    is_known = note.exists()
    with suppress(OSError):
        storage.write_bytes(str(note), recorded.encode(), opener=open_record)
    return is_known


def forget_old(runs: Path) -> None:
    """Remove all but the newest notes of `remember`: a start would need time for each of them."""
    with suppress(OSError):
        notes = sorted((runs / FLOW_RUNS).iterdir(), key=lambda path: path.stat().st_mtime)
        for old in notes[:-RETAINED_FLOW_RUNS]:
            old.unlink(missing_ok=True)


def retake(flow_run: str, runs: Path) -> str | None:
    """Let a retry of a Prefect flow run, not imported yet, take the source of its last start.

    Return and raise as `_take`.
    """
    recorded = None
    with suppress(OSError):
        recorded = (runs / FLOW_RUNS / flow_run).read_text()
    return _take(recorded, runs, "a new flow run of its deployment takes today's")


def _take(recorded: str | None, runs: Path, otherwise: str) -> str | None:
    """Let later imports be of a recorded copy; return its name, None: they are, or it is none.

    Raises UsageError: the copy is gone or was changed; `otherwise` says how to go on.
    """
    if not is_copy(recorded):
        return None
    name = Path(recorded).name
    if digest(_read(Path(__file__).parents[2], DATA)) == name:
        return None
    found = Path(recorded) if Path(recorded).is_dir() else runs.absolute() / RECORDED / name
    is_hidden = recorded_source() == found
    if is_hidden or digest(_read(found / "cloze")) != name:
        fault = "is hidden by ./cloze" if is_hidden else "is gone or was changed"
        raise UsageError(f"the source that this was started with ({found}) {fault}; {otherwise}")
    _import_from(found)
    return describe(recorded)
