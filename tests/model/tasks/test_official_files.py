"""Tasks whose own files no other test goes through: from a few lines in the official format to a
score and to predictions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.core.storage import read_tsv
from cloze.model.tasks.table import load_task
from tests.model.tasks.stages import evaluate, finetune, settings

WORDS = ("the", "cat", "sat", "on", "a", "mat", "dog", "ran")


def sentence(number: int) -> str:
    return " ".join(WORDS[(number + step) % len(WORDS)] for step in range(4))


def write_scicite(folder: Path) -> None:
    """SciBERT's repository: JSON lines in files that end in .txt."""
    intents = ("background", "method", "result")
    for split, count in (("train", 12), ("dev", 6), ("test", 6)):
        rows = [
            {
                "text": f"{sentence(n)} (Smith et al., 2004).",
                "label": intents[n % 3],
                "metadata": {},
            }
            for n in range(count)
        ]
        (folder / f"{split}.txt").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
        )


def write_wnut17(folder: Path) -> None:
    """The shared task's columns: a word, a tab and its tag, and an empty line behind
    each sentence.
    """
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        words = [
            *(f"{word}\tO" for word in WORDS),
            "@paulwalk\tO",
            "empire\tB-location",
            "state\tI-location",
            "esb\tB-group",
        ]
        (folder / name).write_text("\n".join(["\n".join(words) + "\n"] * 4), encoding="utf-8")


def write_race(folder: Path) -> None:
    """A file a passage, of four-way questions, below train, dev and test, and there below high and
    middle.
    """
    for split in ("train", "dev", "test"):
        for level in ("high", "middle"):
            place = folder / split / level
            place.mkdir(parents=True)
            passage = {
                "answers": ["A", "D"],
                "options": [[sentence(n) for n in range(4)], [sentence(n + 3) for n in range(4)]],
                "questions": ["the cat _ .", "What ran?"],
                "article": f"{sentence(1)}. {sentence(2)}.",
                "id": f"{level}1.txt",
            }
            (place / "1.txt").write_text(json.dumps(passage), encoding="utf-8")


@pytest.mark.parametrize(
    ("task", "folder", "write", "metrics", "rows"),
    [
        ("scicite", "scicite", write_scicite, ["macro_f1", "accuracy"], 6),
        ("wnut17", "wnut17", write_wnut17, ["f1", "precision", "recall"], 4),
        ("race", "RACE", write_race, ["accuracy"], 4),
    ],
)
def test_official_files_train_and_score_a_task(
    task: str,
    folder: str,
    write: Callable[[Path], None],
    metrics: list[str],
    rows: int,
    pretrained: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "data" / folder).mkdir(parents=True)
    write(tmp_path / "data" / folder)
    tuned: dict[str, Any] = finetune(
        settings(tmp_path / "data", task=task, epochs=1, baselines=False),
        pretrained,
        tmp_path / "tuned",
    ).as_json()
    assert set(metrics) <= set(tuned["metrics"])
    assert tuned["metric"] == metrics[0]
    tested = evaluate(
        tmp_path / "tuned",
        tmp_path / "test",
        data=str(tmp_path / "data"),
        split="test",
        resamples=20,
    ).as_json()
    assert 0 <= tested["metrics"][metrics[0]] <= 1
    if task == "wnut17":
        written = (tmp_path / "test" / "predictions.txt").read_text(encoding="utf-8")
        assert written.count("\tB-location\t") == rows, "the file's columns, and one more"
    else:
        assert len(read_tsv(str(tmp_path / "test" / "predictions.tsv"))) == rows


def test_scicite_is_read_from_its_authors_archive_too(tmp_path: Path) -> None:
    """AllenAI's files, which call the text `string` (Cohan et al. 2019)."""
    row = {
        "source": "explicit", "citeEnd": 175, "sectionName": "Introduction", "citeStart": 168,
        "string": "However, how frataxin acts is unclear [19].",
        "label": "background", "label_confidence": 1.0, "citingPaperId": "1872",
        "citedPaperId": "ce1d", "isKeyCitation": True, "id": "1872>ce1d",
        "unique_id": "1872>ce1d_11", "excerpt_index": 11,
    }  # fmt: skip
    (tmp_path / "dev.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    found = load_task("scicite", {"columns": {"text": "string"}}).read(str(tmp_path), "dev", None)
    assert (found.texts, found.labels) == ([row["string"]], [0])
