"""Command `fetch`: public text and task data, downloaded, checked and unpacked.

Checksums are those that the publisher or a catalogue gives. A file without one is checked by its
format, and against its first download: `fetched.json` records the sha256 of every file.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from cloze.core import storage
from cloze.core.errors import DataError, UsageError, did_you_mean
from cloze.core.humanize import agree
from cloze.flows.commands.base.field_options import Count
from cloze.flows.commands.base.options import complete_from, emit, json_option
from cloze.labs.downloads.archives import ARCHIVES, check_format, unpack
from cloze.labs.downloads.download import Remote, download, file_hash, read_text

if TYPE_CHECKING:
    from cloze.flows.views.live import StageDisplay

FETCHED = "fetched.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Files that are fetched together.

    Attributes:
        licence: of the texts; SPDX name where there is one.
        remotes: (mirror, number of shards) -> files.
        members, to: members of archives to unpack; see `collections.toml`. Archives are removed
            after that.
        tasks: tasks that read it, from this folder of its directory.
        finish: called with the directory after all downloads.
    """

    licence: str
    remotes: Callable[[str | None, int], Iterable[Remote]]
    members: str = ".*"
    to: str = r"\g<0>"
    tasks: tuple[str, ...] = ()
    folder: str = ""
    finish: Callable[[Path], None] = lambda directory: None


def at_mirror(url: str, mirror: str | None) -> str:
    """Return the address on a mirror, which has the same path.

    Raises:
        UsageError: the mirror is no URL.
    """
    if mirror and not urlsplit(mirror).scheme:
        raise UsageError(f"--mirror ({mirror}) is no URL; write it as https://HOST")
    return f"{mirror.rstrip('/')}{urlsplit(url).path}" if mirror else url


WIKIMEDIA = "https://dumps.wikimedia.org"
DUMP_SUFFIX = "pages-articles-multistream.xml.bz2"


def wiki_dump(wiki: str, mirror: str | None) -> list[Remote]:
    """Return the newest dump of a wiki such as `simplewiki`, with its published sha1."""
    base = at_mirror(f"{WIKIMEDIA}/{wiki}/latest", mirror)
    sums = read_text(f"{base}/{wiki}-latest-sha1sums.txt")
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
    base = at_mirror(f"{GUTENBERG}/cache/epub", mirror)
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


# Task data, from the table `collections.toml`.


def _published() -> dict[str, dict[str, Any]]:
    """Return the rows of the table by name, with `files`: a `Remote` by URL."""
    text = resources.files(__package__).joinpath("collections.toml").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = tomllib.loads(text)
    for row in rows.values():
        row["files"] = {}
        for address, lines in row.pop("from").items():
            for name, *known in map(str.split, lines.splitlines()):
                size, digest = (int(known[0]), known[1]) if known else (None, None)
                url = f"{address}/{name}"
                row["files"][url] = Remote(url, name, sha256=digest, size=size, check=check_format)
    return rows


C4 = "https://huggingface.co/datasets/allenai/c4/resolve/main/en/c4-train.{:05d}-of-01024.json.gz"
OPENWEBTEXT = (
    "https://huggingface.co/datasets/Skylion007/openwebtext/resolve/refs%2Fconvert%2Fparquet/"
    "plain_text/train/{:04d}.parquet"
)
SHARDS = {"c4": 1024, "openwebtext": 80}


def published(name: str, part: str, mirror: str | None) -> list[Remote]:
    """Return the files of a row of the table, or those of one part: of this name up to a dot.

    Raises:
        UsageError: there is no such part.
    """
    row = PUBLISHED[name]
    remotes = list(row["files"].values())
    if "part" in row:
        values = {"part": part or row["part"]}
        remotes = [
            replace(one, url=one.url.format_map(values), name=one.name.format_map(values))
            for one in remotes
        ]
    elif part:
        parts = {PurePath(one.name).name.partition(".")[0] for one in remotes}
        if part not in parts:
            raise UsageError(f"{name} has no part {part!r}; {did_you_mean(part, sorted(parts))}")
        remotes = [one for one in remotes if PurePath(one.name).name.partition(".")[0] == part]
    return [replace(one, url=at_mirror(one.url, mirror)) for one in remotes]


def numbered(template: str, mirror: str | None, shards: int) -> list[Remote]:
    """Return the first shards of a text collection."""
    urls = [template.format(number) for number in range(shards)]
    return [
        Remote(at_mirror(url, mirror), posixpath.basename(url), check=check_format) for url in urls
    ]


def paraphrases(directory: Path) -> None:
    """Write GLUE's MRPC: Microsoft's files, with the dev split that GLUE took out of training."""
    names = ("mrpc_dev_ids.tsv", "msr_paraphrase_train.txt", "msr_paraphrase_test.txt")
    ids, training, testing = (directory / name for name in names)
    if not all(path.exists() for path in (ids, training, testing)):
        return
    dev_ids = {tuple(line.split("\t")) for line in ids.read_text().splitlines()}
    header, *rows = _lines(training)
    dev = [row for row in rows if tuple(row.split("\t")[1:3]) in dev_ids]
    train = [row for row in rows if tuple(row.split("\t")[1:3]) not in dev_ids]
    test_header, *test = _lines(testing)
    numbered_test = [f"{i}\t{row.partition(chr(9))[2]}" for i, row in enumerate(test)]
    test_header = f"index\t{test_header.partition(chr(9))[2]}"
    target = directory / "MRPC"
    target.mkdir(exist_ok=True)
    for split, lines in (
        ("train", [header, *train]),
        ("dev", [header, *dev]),
        ("test", [test_header, *numbered_test]),
    ):
        text = "".join(f"{line}\n" for line in lines)
        (target / f"{split}.tsv").write_text(text, encoding="utf-8")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig").splitlines()


PUBLISHED = _published()
COLLECTIONS: dict[str, Collection] = {
    "simplewiki": Collection(
        licence="CC-BY-SA-4.0", remotes=lambda mirror, shards: wiki_dump("simplewiki", mirror)
    ),
    "enwiki": Collection(
        licence="CC-BY-SA-4.0", remotes=lambda mirror, shards: wiki_dump("enwiki", mirror)
    ),
    "gutenberg": Collection(
        licence="public domain in the USA", remotes=lambda mirror, shards: books(mirror)
    ),
    "c4": Collection(licence="ODC-By-1.0", remotes=functools.partial(numbered, C4)),
    "openwebtext": Collection(
        licence="CC0-1.0 (the packaging)", remotes=functools.partial(numbered, OPENWEBTEXT)
    ),
}
FINISH = {"glue": paraphrases}


def collection_of(text: str) -> Collection:
    """Return the collection of an argument: `glue`, `glue/RTE`, `ud/UD_German-GSD`.

    Raises:
        UsageError: there is no such collection, or it has no parts.
    """
    name, _, part = text.partition("/")
    if name in COLLECTIONS and not part:
        return COLLECTIONS[name]
    if name in COLLECTIONS:
        raise UsageError(f"{name} has no parts such as {part!r}; use {name}")
    if name not in PUBLISHED:
        names = [*COLLECTIONS, *PUBLISHED]
        raise UsageError(f"unknown collection {text!r}; {did_you_mean(name, names)}")
    row = PUBLISHED[name]
    if "part" in row and not re.fullmatch(r"[\w-]*", part):
        raise UsageError(f"{text!r} names no part of {name}; use a name such as {row['part']}")
    return Collection(
        licence=row["licence"],
        remotes=lambda mirror, shards: published(name, part, mirror),
        members=row.get("members", ".*"),
        to=row.get("to", r"\g<0>").format_map({"part": part or row.get("part")}),
        tasks=tuple(row.get("tasks", "").split()),
        folder=part or row["part"] if "part" in row else "",
        finish=FINISH.get(name, lambda directory: None),
    )


def unreadable(tasks: Iterable[str], directory: Path) -> dict[str, str]:
    """Return, by task, a clause about a split of its that is missing; empty: it reads all."""
    from cloze.model.tasks.files import missing_split
    from cloze.model.tasks.table import task_options

    return {
        task: missing_split(str(directory), task_options(task, {}), ("train", "dev"))
        for task in tasks
    }


@click.command()
@click.argument("collection", shell_complete=complete_from(lambda ctx: [*COLLECTIONS, *PUBLISHED]))
@click.option(
    "-o",
    "--out",
    "directory",
    metavar="DIR",
    help="Directory to write to. Default: ./data/COLLECTION.",
)
@click.option("--mirror", metavar="URL", help="URL of a mirror with the same layout.")
@click.option(
    "--shards",
    type=Count(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help=f"First shards of {' or '.join(f'{name} (of {n:,})' for name, n in SHARDS.items())}.",
)
@json_option
def fetch(
    collection: str, directory: str | None, mirror: str | None, shards: int, as_json: bool
) -> None:
    """Download a text collection, such as simplewiki, or task data, such as glue.

    COLLECTION is simplewiki, enwiki, gutenberg, c4, openwebtext or babylm; glue, superglue, squad,
    mrqa, snli, xnli, swag, race, codah, arct, scicite, wnut17, blimp or lama; a part, such as
    glue/RTE; or a treebank, such as ud/UD_German-GSD. An interrupted download continues. Archives
    are unpacked where `--data` looks. A file without a published checksum is pinned.
    """
    from cloze.flows.views import terminal
    from cloze.flows.views.live import StageDisplay

    row = collection_of(collection)
    name, _, part = collection.partition("/")
    if shards > (most := SHARDS.get(name, 1)):
        raise UsageError(f"--shards ({shards:,}) is more than {name} has ({most:,}); use fewer")
    target = Path(directory or Path("data") / name)
    record = _read_record(target / FETCHED, name, row.licence)
    files: dict[str, dict[str, Any]] = record["files"]
    place = target / row.folder
    is_whole = not any(unreadable(row.tasks, place).values())
    for remote in row.remotes(mirror, shards):
        before = files.get(remote.name, {})
        if before and remote.name.endswith(ARCHIVES) and is_whole:  # unpacked, removed
            continue
        pinned = None if remote.sha1 or remote.sha256 else before.get("sha256")
        with StageDisplay(remote.name, terminal.console()) as display:
            progress = functools.partial(_show_bytes, display)
            path = download(replace(remote, pinned=pinned), target, progress)
        digest = file_hash(path, "sha256")
        wanted = remote.sha256 or pinned
        if wanted not in (None, digest):
            raise DataError(f"{path} has changed: its sha256 is {digest}, not {wanted}; remove it")
        if not (remote.sha1 or remote.sha256 or pinned):
            click.echo(f"{remote.name}: no published checksum: got sha256 {digest}", err=True)
        size = path.stat().st_size
        files[remote.name] = {"url": remote.url, "bytes": size, "sha256": digest}
        if remote.name.endswith(ARCHIVES):
            unpack(path, target, row.members, row.to)
        storage.write_bytes(str(target / FETCHED), (json.dumps(record, indent=1) + "\n").encode())
    row.finish(target)
    missing = unreadable(row.tasks, place)
    for task, clause in missing.items():
        if clause and row.folder:
            click.echo(f"{clause}, which task {task} reads", err=True)
        elif clause and not part:
            raise DataError(f"{clause}, which task {task} reads; use another server")
    read = [task for task, clause in missing.items() if not clause]
    present = [str(target / name) for name in files if (target / name).exists()]
    if as_json:
        emit({**record, "directory": str(target), "files": present, "tasks": read})
        return
    use = f"; for --task {', '.join(read)} --data {place}" if read else ""
    click.echo(f"{agree(f'{len(files)} files')} in {target}; licence: {row.licence}{use}")


def _read_record(path: Path, name: str, licence: str) -> dict[str, Any]:
    """Return the record of earlier downloads in a directory, or an empty one.

    Raises:
        DataError: the file is not one.
    """
    record: dict[str, Any] = {"collection": name, "licence": licence, "files": {}}
    try:
        record["files"] = dict(json.loads(path.read_text(encoding="utf-8"))["files"])
    except FileNotFoundError:
        pass
    except (ValueError, TypeError, LookupError) as error:
        raise DataError(f"{path} is no record of downloads ({error}); remove it") from error
    return record


def _show_bytes(display: StageDisplay, done: int, total: int | None) -> None:
    display.progress(done, total, "B", {})
