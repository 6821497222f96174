"""Small datasets made by the stage itself, for the tests of all that reads or extends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from cloze.core.config import parse_config
from cloze.core.stages.execute import BuildResult, execute
from cloze.pipeline.dataset.config import DatasetConfig
from cloze.pipeline.dataset.stage import STAGE
from tests.pipeline.corpus.corpora import made_documents, write_corpus

CONFIG = {"length": 48, "mask_copies": 3, "drawings": 1, "shards": 4, "seed": 7}
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz.,",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
]
SYLLABLES = [first + second for first in "bcdfghlmnprstvwz" for second in "aeiou"]


def write_vocab(directory: Path) -> str:
    """A WordPiece vocabulary that has every syllable of the made documents."""
    path = directory / "vocab.txt"
    path.write_text(
        "".join(f"{piece}\n" for piece in [*PIECES, *SYLLABLES, *(f"##{s}" for s in SYLLABLES)])
    )
    return str(path)


def made_corpus(directory: Path, scrambled: bool = False) -> str:
    """43 documents, three of them odd, six held out."""
    documents = made_documents()
    documents += [
        ("books/odd.txt/1", ["", "\u200b", "Bare."]),
        ("books/odd.txt/2", ["\x00"]),
        ("books/odd.txt/3", ["ba " * 300]),
    ]
    return write_corpus(
        directory,
        documents,
        shards=3,
        heldout=[name for name, _ in documents[:6]],
        scrambled=scrambled,
    )


def make(
    corpus: str, vocab: str, out: Path | str, *, append: str | None = None, **settings: Any
) -> BuildResult:
    """Run the stage, with `CONFIG` and the settings given."""
    config = parse_config(DatasetConfig, {**CONFIG, **settings}, "dataset")
    inputs = {"corpus": corpus, "vocab": vocab} | ({} if append is None else {"append": append})
    return execute(STAGE, config, inputs, str(out))


def tables(result: BuildResult, split: str = "train") -> list[pa.Table]:
    """The shards of a split, as pyarrow reads them."""
    paths = sorted(Path(result.artifact).glob(f"{split}-*.arrow"))
    return [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in paths]


def rows(result: BuildResult, split: str = "train") -> list[dict[str, Any]]:
    """All rows of a split as Python objects."""
    return [row for table in tables(result, split) for row in table.to_pylist()]
