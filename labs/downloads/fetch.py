"""Command `fetch`: public text and task data, downloaded, checked and unpacked.

Checksums are those that the publisher, or the catalogue named in the row, gives. A file without one
is checked by its format. `fetched.json` records the sha256 of every file and the licence.
"""

from __future__ import annotations

import functools
import gzip
import json
import posixpath
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from cloze.core.errors import DataError, UsageError, did_you_mean
from cloze.flows.commands.base.field_options import Count
from cloze.flows.commands.base.options import complete_from, emit, json_option
from cloze.labs.downloads.download import CHUNK_BYTES, Remote, download, file_hash, read_text

if TYPE_CHECKING:
    from cloze.flows.views.live import StageDisplay

FETCHED = "fetched.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Files that are fetched together.

    Attributes:
        licence: of the texts; SPDX name where there is one.
        remotes: (mirror, number of shards) -> files.
        suffix: of the members of zip archives to unpack. Archives are removed after that.
        flat: without the directories of the archive.
        finish: called with the directory after all downloads.
    """

    licence: str
    remotes: Callable[[str | None, int], Iterable[Remote]]
    suffix: str = ""
    flat: bool = False
    finish: Callable[[Path], None] = lambda directory: None


def at_mirror(url: str, mirror: str | None) -> str:
    """Return the address on a mirror, which has the same path."""
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


# Task data. Sizes and sha256 from the catalogues of tensorflow-datasets (url_checksums/) and of
# Hugging Face datasets (dataset_infos.json), which agree where both have a file.

BABYLM = (  # a revision, whose files do not change
    "https://huggingface.co/datasets/BabyLM-community/BabyLM-2026-Strict-Small/resolve/"
    "c92ab16b4f08858304b0815706065b3354d8fc0a"
)
# A collection and an address, then the files there, with size and sha256 where they are published.
_FILES = f"""\
glue https://dl.fbaipublicfiles.com/glue/data
CoLA.zip 376971 f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff
SST-2.zip 7439277 d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa
QQP-clean.zip 41696084 40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0
STS-B.zip 802872 e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85
MNLI.zip 312783507 e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633
QNLIv2.zip 10627589 e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5
RTE.zip 697150 6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee
WNLI.zip 28999 ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46
mrpc_dev_ids.tsv 6222 971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7
glue https://dl.fbaipublicfiles.com/senteval/senteval_data
msr_paraphrase_train.txt 1047044 60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89
msr_paraphrase_test.txt 441275 a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784
squad https://rajpurkar.github.io/SQuAD-explorer/dataset
train-v1.1.json 30288272 3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955
dev-v1.1.json 4854279 95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9
train-v2.0.json 42123633 68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002
dev-v2.0.json 4370528 80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8
snli https://nlp.stanford.edu/projects/snli
snli_1.0.zip 94550081 afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e
xnli https://cims.nyu.edu/~sbowman/xnli
XNLI-1.0.zip 17865352 4ba1d5e1afdb7161f0f23c66dc787802ccfa8a25a3ddd3b165a35e50df346ab1
xnli https://dl.fbaipublicfiles.com/XNLI
XNLI-MT-1.0.zip 466098360 f732517ba2fb1d550e9f3c2aabaef6017c91ee2dcec90e878f138764d224db05
blimp https://raw.githubusercontent.com/alexwarstadt/blimp/master
BLiMP.zip
babylm {BABYLM}
bnc_spoken.train.txt
childes.train.txt
gutenberg.train.txt
open_subtitles.train.txt
simple_wiki.train.txt
switchboard.train.txt
"""


def _published(text: str) -> dict[str, dict[str, tuple[int | None, str | None]]]:
    """Return collection -> URL -> size and sha256."""
    collections: dict[str, dict[str, tuple[int | None, str | None]]] = {}
    files: dict[str, tuple[int | None, str | None]] = {}
    address = ""
    for words in map(str.split, text.splitlines()):
        if "://" in words[-1]:
            files, address = collections.setdefault(words[0], {}), words[-1]
        else:
            file, *known = words
            files[f"{address}/{file}"] = (int(known[0]), known[1]) if known else (None, None)
    return collections


PUBLISHED = _published(_FILES)
C4 = "https://huggingface.co/datasets/allenai/c4/resolve/main/en/c4-train.{:05d}-of-01024.json.gz"
OPENWEBTEXT = (
    "https://huggingface.co/datasets/Skylion007/openwebtext/resolve/refs%2Fconvert%2Fparquet/"
    "plain_text/train/{:04d}.parquet"
)


def published(collection: str, mirror: str | None, shards: int) -> list[Remote]:
    del shards
    return [
        Remote(
            at_mirror(url, mirror),
            posixpath.basename(url),
            size=size,
            sha256=digest,
            check=_is_whole,
        )
        for url, (size, digest) in PUBLISHED[collection].items()
    ]


def numbered(template: str, mirror: str | None, shards: int) -> list[Remote]:
    """Return the first shards of a text collection."""
    urls = [template.format(number) for number in range(shards)]
    return [
        Remote(at_mirror(url, mirror), posixpath.basename(url), check=_is_whole) for url in urls
    ]


def _is_whole(path: Path) -> None:
    """Check a file by its format: a zip archive, gzip, Parquet; others have a checksum."""
    name = path.name.removesuffix(".part")
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                fault = archive.testzip()
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
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise DataError(f"{name} is damaged ({error}); download it again") from error
    if fault is not None:
        raise DataError(f"{name} is damaged ({fault}); download it again")


def paraphrases(directory: Path) -> None:
    """Write GLUE's MRPC: Microsoft's files, with the dev split that GLUE took out of training."""
    ids = directory / "mrpc_dev_ids.tsv"
    if not ids.exists():
        return
    dev_ids = {tuple(line.split("\t")) for line in ids.read_text().splitlines()}
    header, *rows = _lines(directory / "msr_paraphrase_train.txt")
    dev = [row for row in rows if tuple(row.split("\t")[1:3]) in dev_ids]
    train = [row for row in rows if tuple(row.split("\t")[1:3]) not in dev_ids]
    test_header, *test = _lines(directory / "msr_paraphrase_test.txt")
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


def _task(name: str, licence: str, **settings: Any) -> Collection:
    remotes = functools.partial(published, name)
    return Collection(licence=licence, remotes=remotes, **settings)


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
    "babylm": _task("babylm", "of each text, see the dataset's card"),
    "glue": _task("glue", "of each task, see gluebenchmark.com", finish=paraphrases),
    "squad": _task("squad", "CC-BY-SA-4.0"),
    "snli": _task("snli", "CC-BY-SA-4.0", suffix=".jsonl"),
    "xnli": _task("xnli", "CC-BY-NC-4.0", suffix=".tsv"),
    "blimp": _task("blimp", "CC-BY-4.0", suffix=".jsonl", flat=True),
}


def unpack(archive: Path, directory: Path, suffix: str = "", *, flat: bool = False) -> None:
    """Unpack the members of a zip archive that end in `suffix`, and remove it.

    Raises:
        DataError: a member would lie outside of the directory.
    """
    with zipfile.ZipFile(archive) as content:
        for info in content.infolist():
            name = info.filename
            is_hidden = any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
            if info.is_dir() or is_hidden or not name.endswith(suffix):
                continue
            target = directory / (posixpath.basename(name) if flat else name)
            if not target.resolve().is_relative_to(directory.resolve()):
                raise DataError(f"{archive} has a member outside of it ({name}); do not use it")
            target.parent.mkdir(parents=True, exist_ok=True)
            with content.open(info) as source, target.open("wb") as output:
                shutil.copyfileobj(source, output, CHUNK_BYTES)
    archive.unlink()


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
@click.option(
    "--shards",
    type=Count(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="First shards of c4 (of 1,024) or openwebtext (of 80).",
)
@json_option
def fetch(
    collection: str, directory: str | None, mirror: str | None, shards: int, as_json: bool
) -> None:
    """Download a text collection, such as simplewiki, or task data, such as glue.

    COLLECTION is simplewiki, enwiki, gutenberg, c4, openwebtext or babylm; glue, squad, snli,
    xnli or blimp. An interrupted download continues. Archives are unpacked where `--data` looks.
    """
    from cloze.flows.views import terminal
    from cloze.flows.views.live import StageDisplay

    if collection not in COLLECTIONS:
        raise UsageError(
            f"unknown collection {collection!r}; {did_you_mean(collection, COLLECTIONS)}"
        )
    row = COLLECTIONS[collection]
    target = Path(directory or Path("data") / collection)
    record_file = target / FETCHED
    record: dict[str, Any] = {"collection": collection, "licence": row.licence, "files": {}}
    if record_file.exists():
        record["files"] = json.loads(record_file.read_text())["files"]
    for remote in row.remotes(mirror, shards):
        if remote.name in record["files"] and remote.name.endswith(".zip"):  # unpacked, removed
            continue
        with StageDisplay(remote.name, terminal.console()) as display:
            progress = functools.partial(_show_bytes, display)
            path = download(remote, target, progress)
        record["files"][remote.name] = {
            "url": remote.url,
            "bytes": path.stat().st_size,
            "sha256": file_hash(path, "sha256"),
        }
        if path.suffix == ".zip":
            unpack(path, target, row.suffix, flat=row.flat)
        record_file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    row.finish(target)
    files = [str(target / name) for name in record["files"] if (target / name).exists()]
    if as_json:
        emit({**record, "directory": str(target), "files": files})
    else:
        click.echo(f"{len(record['files'])} file(s) in {target}; licence: {row.licence}")


def _show_bytes(display: StageDisplay, done: int, total: int | None) -> None:
    display.progress(done, total, "B", {})
