"""Archives: checked by their format, and unpacked by the names of their members."""

from __future__ import annotations

import contextlib
import functools
import gzip
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from cloze.core.errors import DataError
from cloze.labs.downloads.download import CHUNK_BYTES

ARCHIVES = (".zip", ".tar.gz")


def check_format(path: Path) -> None:
    """Check a file by its format: a zip archive, gzip, Parquet; others have a checksum."""
    name = path.name.removesuffix(".part")
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                fault = archive.testzip()
        elif name.endswith(".tar.gz"):
            with tarfile.open(path) as members:
                fault = None if members.getmembers() else "no members"
        elif name.endswith(".gz"):
            with gzip.open(path) as stream:
                fault = None
                while stream.read(CHUNK_BYTES):
                    pass
        elif name.endswith(".parquet"):
            content = path.read_bytes()
            fault = None if content[:4] == content[-4:] == b"PAR1" else "its frame"
        else:
            return
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise DataError(f"{name} is damaged ({error}); download it again") from error
    if fault is not None:
        raise DataError(f"{name} is damaged ({fault}); download it again")


def unpack(archive: Path, directory: Path, members: str = ".*", to: str = r"\g<0>") -> None:
    """Unpack the members of a zip or tar archive whose names match, and remove it.

    Members that become one file are joined in the order of the archive.

    Raises:
        DataError: no member matches, or one would lie outside of the directory.
    """
    written: set[Path] = set()
    with contextlib.ExitStack() as stack:
        for name, opened in _members(archive, stack).items():
            is_hidden = any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
            match = re.fullmatch(members, name)
            if is_hidden or match is None:
                continue
            target = directory / match.expand(to)
            if not target.resolve().is_relative_to(directory.resolve()):
                raise DataError(f"{archive} has a member outside of it ({name}); do not use it")
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened() as source, target.open("ab" if target in written else "wb") as output:
                shutil.copyfileobj(source, output, CHUNK_BYTES)
            written.add(target)
    if not written:
        raise DataError(
            f"{archive} has none of the files that it should have ({members}); use another server"
        )
    archive.unlink()


def _members(archive: Path, stack: contextlib.ExitStack) -> dict[str, Callable[[], IO[bytes]]]:
    """Return functions that open the regular files of an archive, by name without `./`."""
    if archive.suffix == ".zip":
        zipped = stack.enter_context(zipfile.ZipFile(archive))
        infos = [info for info in zipped.infolist() if not info.is_dir()]
        return {info.filename: functools.partial(zipped.open, info) for info in infos}
    tarred = stack.enter_context(tarfile.TarFile.gzopen(archive))
    files = [member for member in tarred.getmembers() if member.isfile()]
    return {
        member.name.removeprefix("./"): functools.partial(_extracted, tarred, member)
        for member in files
    }


def _extracted(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(member)
    assert stream is not None  # a regular file
    return stream
