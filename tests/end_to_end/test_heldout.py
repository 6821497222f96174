"""What is held out stays held out: the same documents, whatever is added to the corpus, through
corpus and dataset.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cloze.core.artifacts import artifact
from cloze.flows.cli import main
from tests import warm
from tests.pipeline.corpus.corpora import made_documents
from tests.pipeline.dataset.datasets import write_vocab


def _write(path: Path, prefix: str, count: int) -> str:
    """Documents as JSON lines."""
    with path.open("w") as handle:
        for name, text in made_documents(count, 12):
            handle.write(
                json.dumps({"id": f"{prefix}/{name}", "text": f"{prefix} " + " ".join(text)}) + "\n"
            )
    return str(path)


def _documents(dataset: Path, split: str) -> set[int]:
    files = sorted(dataset.glob(f"{split}-*.arrow"))
    tables = [pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files]
    return {source["document"] for table in tables for source in table["source"].to_pylist()}


def _make(*command: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm.python())
        assert main([*command]) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Corpus A and its dataset; corpus A + B and its dataset; and B appended to A's dataset."""
    place = tmp_path_factory.mktemp("heldout")
    a, b = _write(place / "a.jsonl", "a", 80), _write(place / "b.jsonl", "b", 60)
    vocab = write_vocab(place)
    kept = ["--set", "heldout_fraction=0.2", "--dedup", "none"]
    _make("corpus", "--source", f"jsonl={a}", *kept, "--out", str(place / "A"))
    _make(
        "corpus",
        "--source",
        f"jsonl={b}",
        "--source",
        f"jsonl={a}",
        *kept,
        "--out",
        str(place / "AB"),
    )
    settings = ["--tokenizer", vocab, "--length", "64", "--mask-copies", "2"]
    _make("dataset", "--corpus", str(place / "A"), *settings, "--out", str(place / "data-A"))
    _make("dataset", "--corpus", str(place / "AB"), *settings, "--out", str(place / "data-AB"))
    _make(
        "dataset",
        "--append",
        str(place / "data-A"),
        "--corpus",
        str(place / "AB"),
        "--out",
        str(place / "data-A+B"),
    )
    return {name: place / name for name in ("data-A", "data-AB", "data-A+B")}


def test_held_out_documents_do_not_change(made: dict[str, Path]) -> None:
    held, train = _documents(made["data-A"], "heldout"), _documents(made["data-A"], "train")
    assert 5 < len(held) < 40
    assert not held & train
    for larger in ("data-AB", "data-A+B"):
        held_now, train_now = _documents(made[larger], "heldout"), _documents(made[larger], "train")
        assert held_now & (held | train) == held
        assert train_now & (held | train) == train
        assert len(held_now) > len(held)
    assert _documents(made["data-AB"], "heldout") == _documents(made["data-A+B"], "heldout")


def test_appending_adds_what_is_new_alone(made: dict[str, Path]) -> None:
    whole, appended = (artifact.read_manifest(str(made[name])) for name in ("data-AB", "data-A+B"))
    assert appended.counters["dropped/already_in_dataset"] == 80
    assert appended.summary["documents"] == whole.summary["documents"] == 140
    assert appended.summary["tokens"] == whole.summary["tokens"]
