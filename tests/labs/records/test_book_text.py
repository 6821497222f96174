"""The text that the project's own record book fixes is what today's stages make of its sources."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.labs.records.record_book import Book, content_hash
from tests.conftest import REPOSITORY

BOOK = REPOSITORY / "benchmarks" / "records"


@pytest.mark.soak
def test_a_stranger_makes_the_text_of_the_book(shared_data: Path, tmp_path: Path) -> None:
    """A stage that reads text otherwise begins a new book: nobody could enter the old one."""
    for folder, source in (("wikipedia", "wikipedia/extracted"), ("novels", "books/novels")):
        (tmp_path / folder).symlink_to(shared_data / source)
    for line in (BOOK / "texts.sha256").read_text().splitlines():
        digest, name = line.split(maxsplit=1)
        content = (tmp_path / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            pytest.skip(f"{shared_data} has another {name} than the book")
    sources = "[{kind: wikiextractor, path: wikipedia}, {kind: books, path: novels}]"
    command = f"{sys.executable} -m cloze run speedrun --no-prefect --until dataset".split()
    done = subprocess.run(
        [*command, "--set", f"corpus.sources={sources}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [run] = (path for path in tmp_path.rglob("speedrun") if path.is_dir())
    made = {stage: content_hash(str(run / stage)) for stage in ("corpus", "vocab", "dataset")}
    book = Book.load(BOOK)
    assert made == {**book.text, "dataset": book.heldout}
