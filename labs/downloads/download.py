"""Downloads, resumed after an interruption, and checked.

A download grows as `NAME.part`. The server's validator (ETag or Last-Modified) is stored next to
it, so that a resumed download never mixes two versions. Size and, if published, hash are checked
before the final rename.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cloze.core.errors import ClozeError, DataError

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 30
AGENT = "cloze/0.1 (corpus download)"

Progress = Callable[[int, int | None], None]  # bytes so far, total bytes if known


@dataclass(frozen=True, slots=True)
class Remote:
    """File to download.

    Attributes:
        name: file in the target directory; it may have folders.
        sha1, sha256, size: as published; None: not known.
        pinned: sha256 of the first download, if none is published.
        check: raises `DataError` if the finished download is incomplete.
    """

    url: str
    name: str
    sha1: str | None = None
    sha256: str | None = None
    pinned: str | None = None
    size: int | None = None
    check: Callable[[Path], None] | None = None


def _unreachable(url: str, error: Exception) -> ClozeError:
    reason = getattr(error, "reason", None) or error
    return ClozeError(
        f"{url} is unreachable ({reason}); check the internet connection, or name another server"
        " with --mirror"
    )


def read_text(url: str) -> str:
    """Return the body of a small ASCII page."""
    request = urllib.request.Request(url, headers={"User-Agent": AGENT})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return str(response.read().decode("ascii", "replace"))
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error


def download(remote: Remote, directory: Path, progress: Progress) -> Path:
    """Download `remote` into `directory` and return its path; a finished file is kept.

    Raises:
        ClozeError: the server is unreachable, or the connection broke (partial data are kept).
        DataError: size or hash is wrong (the data are deleted).
    """
    target = directory / remote.name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part_file = directory / f"{remote.name}.part"
    validator_file = directory / f"{remote.name}.part.etag"
    validator = validator_file.read_text() if validator_file.exists() else ""
    # without a validator, the server's file may have changed since
    offset = part_file.stat().st_size if validator and part_file.exists() else 0
    headers = {"User-Agent": AGENT}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": validator}
    request = urllib.request.Request(remote.url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            is_resumed = response.status == 206
            size = offset if is_resumed else 0
            length = response.headers.get("Content-Length")
            total = int(length) + size if length else None
            validator = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            with part_file.open("ab" if is_resumed else "wb") as stream:
                validator_file.write_text(validator)  # after the truncation of an older part
                while chunk := response.read(CHUNK_BYTES):
                    stream.write(chunk)
                    size += len(chunk)
                    progress(size, total)
                stream.flush()
                os.fsync(stream.fileno())
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: the part is already the complete file
            raise ClozeError(
                f"{remote.url} responded with {error.code} {error.reason}; check the name, try"
                " again later, or name another server with --mirror"
            ) from error
        size, total = offset, offset
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(remote.url, error) from error
    if total is not None and size < total:
        raise ClozeError(
            f"{remote.url} broke off at {size:,} of {total:,} bytes; run the same command again to"
            " continue"
        )
    try:
        _check(remote, part_file)
    except DataError:
        part_file.unlink()
        validator_file.unlink(missing_ok=True)
        raise
    os.replace(part_file, target)
    validator_file.unlink(missing_ok=True)
    return target


def file_hash(path: Path, kind: str) -> str:
    """Return a file's hash of a kind of hashlib's, such as sha256."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def _check(remote: Remote, path: Path) -> None:
    size = path.stat().st_size
    if remote.size not in (None, size):
        raise DataError(
            f"{remote.url} has {size:,} bytes, its publisher says {remote.size:,}; download it"
            " again"
        )
    for kind, published in (("sha1", remote.sha1), ("sha256", remote.sha256)):
        if published is not None and (found := file_hash(path, kind)) != published:
            raise DataError(
                f"{remote.url} has {kind} {found}, its publisher says {published}; download it"
                " again"
            )
    if remote.pinned not in (None, found := file_hash(path, "sha256")):
        raise DataError(
            f"{remote.url} has sha256 {found}, its first download had {remote.pinned}; to take the"
            f" new one, remove fetched.json beside it"
        )
    if remote.check is not None:
        remote.check(path)
