"""Downloads of public text: resumed after an interruption, verified before the final rename.

A download grows as `NAME.part`. The server's validator (ETag or Last-Modified) is stored next to
it, so that a resumed download never mixes two versions. Size and, if published, hash are checked.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
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
    """File to download. `check` raises `DataError` if the finished download is incomplete."""

    url: str
    name: str
    sha1: str | None = None
    check: Callable[[Path], None] | None = None


def unreachable(url: str, error: Exception) -> ClozeError:
    reason = getattr(error, "reason", None) or error
    return ClozeError(
        f"{url} cannot be reached ({reason}); connect to the internet, or pass --mirror with an "
        f"address that can be"
    )


def read(url: str) -> bytes:
    """Return the body of a small page."""
    request = urllib.request.Request(url, headers={"User-Agent": AGENT})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
            return content
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(url, error) from error


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
    part, validator_file = directory / f"{remote.name}.part", directory / f"{remote.name}.part.etag"
    have = part.stat().st_size if part.exists() and validator_file.exists() else 0
    headers = {"User-Agent": AGENT}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator_file.read_text()}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT_SECONDS
        ) as response:
            resumed = response.status == 206
            length = response.headers.get("Content-Length")
            total = int(length) + (have if resumed else 0) if length else None
            validator_file.write_text(
                response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            )
            size = have if resumed else 0
            with part.open("ab" if resumed else "wb") as stream:
                while chunk := response.read(CHUNK_BYTES):
                    stream.write(chunk)
                    size += len(chunk)
                    progress(size, total)
                stream.flush()
                os.fsync(stream.fileno())
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: the part is already the whole file
            raise ClozeError(
                f"{remote.url} answers {error.code} {error.reason}; try again later or another "
                f"--mirror"
            ) from error
        size, total = have, have
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(remote.url, error) from error
    if total is not None and size < total:
        raise ClozeError(
            f"{remote.url} broke off at {size:,} of {total:,} bytes; run the same command again to "
            f"go on"
        )
    try:
        _check(remote, part)
    except DataError:
        part.unlink()
        validator_file.unlink(missing_ok=True)
        raise
    os.replace(part, target)
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
                f"{remote.url} came with sha1 {digest.hexdigest()}, its publisher says "
                f"{remote.sha1}; fetch it again"
            )
    if remote.check is not None:
        remote.check(path)


WIKIMEDIA = "https://dumps.wikimedia.org"
DUMP_SUFFIX = "pages-articles-multistream.xml.bz2"


def wiki_dump(wiki: str, mirror: str | None) -> list[Remote]:
    """Return the newest dump of a wiki such as `simplewiki`, with its published sha1."""
    base = f"{(mirror or WIKIMEDIA).rstrip('/')}/{wiki}/latest"
    sums = read(f"{base}/{wiki}-latest-sha1sums.txt").decode("ascii", "replace")
    found = re.search(
        rf"^([0-9a-f]{{40}})\s+{wiki}-\w+-{re.escape(DUMP_SUFFIX)}$", sums, re.MULTILINE
    )
    if found is None:
        raise DataError(
            f"{base}/{wiki}-latest-sha1sums.txt lists no {DUMP_SUFFIX}; the dump is not finished, "
            f"try again later"
        )
    name = f"{wiki}-latest-{DUMP_SUFFIX}"
    return [Remote(f"{base}/{name}", name, sha1=found.group(1))]


GUTENBERG = "https://www.gutenberg.org"
# English prose before 1929, by ebook number: Austen, the Brontës, Carroll, Conrad, Dickens, Doyle,
# Eliot, Hardy, Hawthorne, James, London, Melville, Shelley, Stevenson, Stoker, Swift, Twain, Wells,
# Wilde, Darwin.
BOOKS = (
    1342,
    161,
    105,
    1260,
    768,
    11,
    219,
    98,
    1400,
    1661,
    834,
    145,
    110,
    33,
    209,
    215,
    2701,
    84,
    120,
    345,
    829,
    76,
    35,
    174,
    1228,
)


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
            f"{path.name} is no whole Project Gutenberg text (its START or END line is missing); "
            f"fetch it again"
        )


COLLECTIONS: dict[str, Callable[[str | None], list[Remote]]] = {
    "simplewiki": lambda mirror: wiki_dump("simplewiki", mirror),
    "enwiki": lambda mirror: wiki_dump("enwiki", mirror),
    "gutenberg": books,
}
