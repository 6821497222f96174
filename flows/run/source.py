"""The source of a run: all processes that a start begins import the files of its beginning.

The files of a checkout or an editable install are copied to `RUNS/.source/HASH/`, once by content,
in the layout of a wheel. The copy is the first entry of `PYTHONPATH`, which reaches ranks, jobs,
agents and Beam workers. An installed package is no work in progress: its version is noted. So are
those of plug-ins.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cloze.core.errors import UsageError, describe_os_error
from cloze.core.identity import RECORDED, package_root, recorded_source
from cloze.core.plugins import PACKAGE, own_version
from cloze.flows.data import DATA, FILES
from cloze.flows.run import status_file
from cloze.flows.views import terminal

UNFINISHED = ".new-"  # prefix of a copy that is being made


def is_copy(source: str | None) -> bool:
    """Return whether a recorded source is a copy; else it is a version, or nothing."""
    return source is not None and os.path.isabs(source)


def describe(source: str) -> str:
    """Return a source for a message: the short hash of a copy, or a version."""
    return Path(source).name[:12] if is_copy(source) else f"version {source}"


def begin(directory: Path, runs: Path, screen: Console) -> str | None:
    """Fix the source of a start, and say whether the last start's differs; None: it is not fixed.

    Args:
        directory: directory of the run's records, which gets the copy where `runs` cannot have it.
        runs: runs directory.
        screen: console for output.
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

    Args:
        runs: directory that gets the copy.

    Returns:
        The copy, or the version of an installed package.

    Raises:
        OSError: the copy cannot be written.
    """
    root = package_root()
    if list(root.parent.glob(f"{PACKAGE.replace('-', '_')}-*.dist-info")):
        return own_version()
    files = _read(root, DATA if recorded_source() is None else None)
    target = runs.absolute() / RECORDED / _digest(files)
    damaged = {name for name, content in files.items() if not _has(target / name, len(content))}
    if damaged and target.is_dir():  # as after a cleaner of temporary files
        for name in damaged:
            _write(target / name, files[name])
    elif damaged:
        _make(target, files)
    _import_from(target)
    return str(target)


def _read(root: Path, data: Path | None = None) -> dict[str, bytes]:
    """Return the content of a package's files by path in the copy, but for bytecode.

    Args:
        root: folder of the package.
        data: folder of the files of `flows.data`, which a checkout has at its top.
    """
    folders = {"cloze": root}
    if data is not None:
        folders |= {f"cloze/flows/data/{name}": data / name for name in FILES}
    return {
        f"{name}/{path.relative_to(folder)}" if path != folder else name: path.read_bytes()
        for name, folder in folders.items()
        for path in _files(folder)
    }


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, or the file itself; what editors leave is hidden."""
    if folder.is_file():
        yield folder
    for directory, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(each for each in folders if each != "__pycache__" and each[0] != ".")
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith((".pyc", "~")):
                yield Path(directory, name)


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:32]


def _has(path: Path, size: int) -> bool:
    with suppress(OSError):
        return path.stat().st_size == size
    return False


def _make(target: Path, files: Mapping[str, bytes]) -> None:
    """Write a copy, complete at once; another start may be faster."""
    aside = target.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
    try:
        for name, content in files.items():
            _write(aside / name, content)
        with suppress(OSError):
            aside.rename(target)
        if not target.is_dir():
            aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    """Write a file that nobody edits by mistake, such as from a traceback."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")  # other processes may import the file
    aside.write_bytes(content)
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


def enter(recorded: str | None, runs: Path) -> None:
    """Begin this command anew in the recorded source, unless this process has the same files.

    Raises:
        UsageError: the copy is gone or was changed.
    """
    if recorded is None or not is_copy(recorded):
        return
    name = Path(recorded).name
    if _digest(_read(Path(__file__).parents[2], DATA)) == name:
        return
    found = Path(recorded) if Path(recorded).is_dir() else runs.absolute() / RECORDED / name
    fault = "is gone" if not found.is_dir() else ""
    if not fault and _digest(_read(found / "cloze")) != name:
        fault = "was changed"
    if not fault and recorded_source() == found:
        fault = "is hidden by another folder cloze/ in this directory"
    if fault:
        raise UsageError(
            f"the source that this was started with ({found}) {fault}; --current-source goes on"
            " with today's"
        )
    _import_from(found)
    terminal.console().print(f"source: {describe(recorded)}, as recorded", markup=False)
    os.execv(sys.executable, [sys.executable, "-m", "cloze", *sys.argv[1:]])
