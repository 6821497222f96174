"""Pages in both forms, wikitext and HTML, for the benchmarks of fidelity."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloze.labs.enterprise_html import archive
from cloze.labs.enterprise_html.archive import NotAnArticleError, of_record
from cloze.pipeline.corpus.readers.base import Slice

SMALL = Path(__file__).parents[1] / "tests" / "pipeline" / "corpus" / "readers" / "pairs"
_DUMPS = (".json", ".ndjson", ".ndjson.gz", ".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True)
class Pair:
    """A page in both forms."""

    language: str
    title: str
    wikitext: str
    html: str
    wiki: str = ""

    @property
    def name(self) -> str:
        other = self.wiki not in ("", f"{self.language}wiki")
        return f"{self.language}/{f'{self.wiki}:' if other else ''}{self.title}"


def pairs_in(path: Path) -> Iterator[Pair]:
    """The pages below a path that are there in both forms."""
    if path.is_file():
        yield from _of_dump(path)
        return
    for name in sorted(path.rglob("*.wikitext")):
        rendered = name.with_suffix(".html")
        if rendered.exists():
            yield Pair(
                name.parent.name,
                name.stem,
                name.read_text(encoding="utf-8"),
                rendered.read_text(encoding="utf-8"),
            )
    for name in sorted(path.rglob("*")):
        if name.name.lower().endswith(_DUMPS):
            yield from _of_dump(name)


def pages_in(path: Path) -> Iterator[str]:
    """The pages in HTML below a path: files of their own, and those of dumps."""
    for name in [path] if path.is_file() else sorted(path.rglob("*")):
        if name.suffix == ".html":
            yield name.read_text(encoding="utf-8", errors="replace")
        elif name.name.lower().endswith(_DUMPS):
            yield from (pair.html for pair in _of_dump(name, wikitext=False))


def _of_dump(path: Path, wikitext: bool = True) -> Iterator[Pair]:
    """The articles of a dump, with `wikitext` those alone that have both forms."""
    source = archive.UnpackedStream(
        Slice(kind="html", name=path.name, path=str(path), size=path.stat().st_size)
    )
    try:
        files: Iterable[Any] = (
            (content for _, _, content in archive.tar_members(source))
            if ".tar" in path.name
            else (source,)
        )
        for file in files:
            data = b"".join(iter(lambda file=file: file.read(1 << 20), b""))
            for line in (data,) if path.suffix == ".json" else data.splitlines():
                if (pair := _of_record(line)) and (pair.wikitext or not wikitext):
                    yield pair
    finally:
        source.close()


def _of_record(line: bytes) -> Pair | None:
    try:
        article = of_record(json.loads(line))
    except (ValueError, NotAnArticleError):
        return None
    return Pair(article.language, article.title, article.wikitext, article.html, article.wiki)
