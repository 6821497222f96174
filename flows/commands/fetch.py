"""Command `fetch`: downloads of public text, resumed after an interruption, and checked.

A download grows as `NAME.part`. The server's validator (ETag or Last-Modified) is stored next to
it, so that a resumed download never mixes two versions. Size and, if published, hash are checked
before the final rename.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloze.core.errors import ClozeError, DataError, UsageError, did_you_mean
from cloze.flows.commands.base.options import complete_from, emit, json_option

if TYPE_CHECKING:
    from cloze.flows.views.live import StageDisplay

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 30
AGENT = "cloze/0.1 (corpus download)"

Progress = Callable[[int, int | None], None]  # bytes so far, total bytes if known


@dataclass(frozen=True, slots=True)
class Remote:
    """File to download. `check` raises `DataError` if the finished download is incomplete."""

    url: str
    name: str
    sha1: str | None = None
    check: Callable[[Path], None] | None = None


def _unreachable(url: str, error: Exception) -> ClozeError:
    reason = getattr(error, "reason", None) or error
    return ClozeError(
        f"{url} is unreachable ({reason}); check the internet connection, or name another server"
        " with --mirror"
    )


def _read_text(url: str) -> str:
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
    directory.mkdir(parents=True, exist_ok=True)
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
                f"{remote.url} responded with {error.code} {error.reason}; try again later, or"
                " name another server with --mirror"
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


def _check(remote: Remote, path: Path) -> None:
    if remote.sha1 is not None:
        digest = hashlib.sha1()
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != remote.sha1:
            raise DataError(
                f"{remote.url} has sha1 {digest.hexdigest()}, its publisher says {remote.sha1};"
                " download it again"
            )
    if remote.check is not None:
        remote.check(path)


WIKIMEDIA = "https://dumps.wikimedia.org"
DUMP_SUFFIX = "pages-articles-multistream.xml.bz2"


def wiki_dump(wiki: str, mirror: str | None) -> list[Remote]:
    """Return the newest dump of a wiki such as `simplewiki`, with its published sha1."""
    base = f"{(mirror or WIKIMEDIA).rstrip('/')}/{wiki}/latest"
    sums = _read_text(f"{base}/{wiki}-latest-sha1sums.txt")
    pattern = rf"^([0-9a-f]{{40}})\s+{wiki}-\w+-{re.escape(DUMP_SUFFIX)}$"
    match = re.search(pattern, sums, re.MULTILINE)
    if match is None:
        raise DataError(
            f"{base}/{wiki}-latest-sha1sums.txt lists no {DUMP_SUFFIX}: the dump is not finished;"
            " try again later"
        )
    name = f"{wiki}-latest-{DUMP_SUFFIX}"
    return [Remote(f"{base}/{name}", name, sha1=match.group(1))]


GUTENBERG = "https://www.gutenberg.org"
# English prose before 1929, by ebook number: Austen, the Brontës, Carroll, Conrad, Dickens, Doyle,
# Eliot, Hardy, Hawthorne, James, London, Melville, Shelley, Stevenson, Stoker, Swift, Twain, Wells,
# Wilde, Darwin.
BOOKS = (
    1342, 161, 105, 1260, 768, 11, 219, 98, 1400, 1661, 834, 145, 110, 33,
    209, 215, 2701, 84, 120, 345, 829, 76, 35, 174, 1228,
)  # fmt: skip


def books(mirror: str | None) -> list[Remote]:
    """Return books from Project Gutenberg as plain text."""
    base = f"{(mirror or GUTENBERG).rstrip('/')}/cache/epub"
    return [
        Remote(f"{base}/{number}/pg{number}.txt", f"pg{number}.txt", check=_is_book)
        for number in BOOKS
    ]


def _is_book(path: Path) -> None:
    content = path.read_bytes()
    if b"PROJECT GUTENBERG EBOOK" not in content or b"*** END OF" not in content:
        raise DataError(
            f"{path.name} is not a complete Project Gutenberg text (the START or END line is"
            " missing); download it again"
        )


COLLECTIONS: dict[str, Callable[[str | None], list[Remote]]] = {
    "simplewiki": lambda mirror: wiki_dump("simplewiki", mirror),
    "enwiki": lambda mirror: wiki_dump("enwiki", mirror),
    "gutenberg": books,
}


@click.command()
@click.argument("collection", shell_complete=complete_from(lambda ctx: COLLECTIONS))
@click.option(
    "-o",
    "--out",
    "directory",
    metavar="DIR",
    help="Directory to write to. Default: ./data/COLLECTION.",
)
@click.option("--mirror", metavar="URL", help="URL of a mirror with the same layout.")
@json_option
def fetch(collection: str, directory: str | None, mirror: str | None, as_json: bool) -> None:
    """Download a text collection, such as simplewiki.

    COLLECTION is simplewiki, enwiki or gutenberg. An interrupted download continues.
    """
    from cloze.flows.views import terminal
    from cloze.flows.views.live import StageDisplay

    if collection not in COLLECTIONS:
        raise UsageError(
            f"unknown collection {collection!r}; {did_you_mean(collection, COLLECTIONS)}"
        )
    target = Path(directory or Path("data") / collection)
    files = []
    for remote in COLLECTIONS[collection](mirror):
        with StageDisplay(remote.name, terminal.console()) as display:
            progress = functools.partial(_show_bytes, display)
            files.append(str(download(remote, target, progress)))
    if as_json:
        emit({"collection": collection, "directory": str(target), "files": files})
    else:
        click.echo(f"{len(files)} file(s) in {target}")


def _show_bytes(display: StageDisplay, done: int, total: int | None) -> None:
    display.progress(done, total, "B", {})
