"""The card of a task's data: repeats and shortcuts are found, and nothing in data without any."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloze.flows.report.report_nodes import read_node
from cloze.labs.task_card import commands
from cloze.labs.task_card.card import compare, figures, view
from cloze.model.tasks.table import CHECKS, load_task
from cloze.model.tasks.task import Split
from tests.flows.test_cli import cloze
from tests.labs.downloads.test_downloads import files, invoke, mirror, publish
from tests.labs.downloads.test_task_files import CONTENTS

__all__ = ["files"]  # a fixture
WORDS = "a river goes by the old mill where birds and men wait for rain or snow".split()
Row = tuple[str, str, str]  # text, pair, label
Make = Callable[[random.Random, int], Row]


def sentence(rng: random.Random, length: int = 8) -> str:
    return " ".join(rng.choices(WORDS, k=length))


def plain(rng: random.Random, number: int) -> Row:
    return f"{sentence(rng)} {rng.random()}", f"{sentence(rng)} {rng.random()}", rng.choice("01")


def by_length(rng: random.Random, number: int) -> Row:
    label = rng.choice("01")
    return f"{sentence(rng)} {number}", sentence(rng, 4 if label == "0" else 12), label


def by_words(rng: random.Random, number: int) -> Row:
    label = rng.choice("01")
    hint = "never" if label == "0" and rng.random() < 0.8 else "often"
    return sentence(rng), f"{sentence(rng, 6)} {hint} {number}", label


def by_overlap(rng: random.Random, number: int) -> Row:
    label, text = rng.choice("01"), sentence(rng, 6)
    return text, text if label == "1" else f"so it is {number} times done", label


def same_pair(rng: random.Random, number: int) -> Row:
    return f"{sentence(rng)} {rng.random()}", "Is it so?", rng.choice("01")


def write(data: Path, make: Make | dict[str, list[Row]], sizes: tuple[int, int]) -> None:
    (data / "WNLI").mkdir(parents=True, exist_ok=True)
    for split, size in zip(("train", "dev"), sizes, strict=True):
        rng = random.Random(split)
        rows = make[split] if isinstance(make, dict) else [make(rng, n) for n in range(size)]
        lines = ["index\tsentence1\tsentence2\tlabel"]
        lines += [f"{number}\t" + "\t".join(row) for number, row in enumerate(rows)]
        (data / "WNLI" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def findings(data: Path, task: str = "wnli", truncated: int | None = None) -> list[str]:
    views, splits = {}, {}
    for name in ("train", "dev"):
        examples = load_task(task).read(str(data), name, None)
        views[name] = own = view(examples)
        lengths = [len(" ".join(key).split()) for key in own.inputs]
        splits[name] = {"examples": len(examples), **figures(own, lengths, truncated)}
    return compare(views, splits)


def schemas(answer_of_dev: Callable[[str], str]) -> dict[str, list[Row]]:
    """Return pairs as WNLI has them: a schema's two readings are in train and dev."""
    rng = random.Random(1)
    texts = [f"{sentence(rng)} {number}" for number in range(400)]
    labels = [rng.choice("01") for _ in texts]
    train = [(text, f"one {text}", label) for text, label in zip(texts, labels, strict=True)]
    dev = [(text, f"two {text}", answer_of_dev(label)) for text, _, label in train[:80]]
    return {"train": train, "dev": dev}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda label: str(1 - int(label)), "right for 0% of them, a trap"),
        (lambda label: label, "right for 100% of them, a leak"),
    ],
)
def test_texts_that_splits_share_are_told(
    tmp_path: Path, answer: Callable[[str], str], told: str
) -> None:
    write(tmp_path, schemas(answer), (0, 0))
    first = findings(tmp_path)[0]
    assert first.startswith("text of 80 of 80 dev examples also in train;")
    assert told in first


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (by_length, "length of pair alone is right for 100% of dev"),
        (by_words, "words of pair alone is right for"),
        (by_overlap, "overlap of words alone is right for 100% of dev"),
        (same_pair, "pair is the same in all of train"),
    ],
)
def test_shortcuts_are_told(tmp_path: Path, make: Make, told: str) -> None:
    write(tmp_path, make, (1000, 300))
    assert any(told in line for line in findings(tmp_path))


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_told_of_data_without_any(tmp_path: Path, seed: int) -> None:
    write(tmp_path, lambda rng, n: plain(random.Random(f"{seed} {rng.random()}"), n), (1000, 300))
    assert findings(tmp_path) == []
    write(tmp_path, same_pair, (19, 19))  # too few to say
    assert findings(tmp_path) == []


def test_splits_that_differ_are_told(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = {
        "train": [(f"{sentence(rng)} {n}", sentence(rng), "01"[n % 4 == 0]) for n in range(200)],
        "dev": [(f"{sentence(rng, 20)} {n}", sentence(rng, 9), "01"[n % 4 > 0]) for n in range(80)],
    }
    rows["train"] += [("An odd thing.", "So it is.", "01"[n % 2]) for n in range(30)]
    write(tmp_path, rows, (0, 0))
    told = "; ".join(findings(tmp_path, truncated=40))
    assert "class 0 is 72% of train and 25% of dev" in told
    assert "the median lengths are 17 in train, 30 in dev" in told
    assert "17% of train and 50% of dev are truncated" in told
    assert "30 of train are repeats with several answers" in told


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_tasks_of_all_kinds_have_a_card(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    publish(files, monkeypatch, name, **CONTENTS[name])
    answer = invoke(name, "--mirror", mirror(files), "--out", tmp_path)
    for task in answer["tasks"]:
        examples = load_task(task).read(str(tmp_path), "train", None)
        own = view(examples)
        assert len(own.inputs) == len(own.answers or ()) == len(examples), task
        assert own.columns, task
        assert own.classes, task
        assert findings(tmp_path, task) == []  # of fewer than 20 examples


def test_the_command_and_the_report(tmp_path: Path) -> None:
    write(tmp_path, schemas(lambda label: str(1 - int(label))), (0, 0))
    done = cloze("task-card", "wnli", "--data", tmp_path, "--json", "--out", tmp_path / "card")
    assert done.returncode == 0, done.stderr
    shared = done.json["splits"]["dev"]["shared"]["text"]
    assert (shared["examples"], shared["same"]) == (80, 0)
    assert "in train too, text same" in cloze("task-card", "wnli", "--data", tmp_path).stdout
    node = read_node("task-card", str(tmp_path / "card"), {})
    assert commands.SECTION.pictures is not None
    assert commands.rows(node.manifest.summary)[0] == ("", "train", "dev")
    ((title, page, note),) = commands.SECTION.pictures([node])
    assert (title, "a trap" in note, "<td>class 0</td>" in page) == ("Data of wnli", True, True)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("wnlii", "--data", "."), 2, "wnli"),
        (("wnli",), 2, "needs data"),
        (("wnli", "--data", "none"), 3, "none"),
        (("multitask", "--data", "."), 2, "has no files of its own"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], code: int, told: str
) -> None:
    done = cloze("task-card", *arguments, cwd=tmp_path)
    assert (done.returncode, told in done.stderr.splitlines()[-1]) == (code, True), done.stderr


@pytest.mark.parametrize("own", [{"parts": {}}, {"queries": ["a"], "pairs": [(0, 0)]}])
def test_examples_of_other_kinds_have_no_line(own: dict[str, Any]) -> None:
    samples = SimpleNamespace(lengths=np.array([4] * 30), truncated=0)

    class Examples(SimpleNamespace):
        def __len__(self) -> int:
            return 30

    split: Any = SimpleNamespace(
        examples=Examples(labelled=True, labels=[1], **own), samples=samples
    )
    assert CHECKS["task-card"](split, split) == []


def test_before_a_training_the_line_is_told(tmp_path: Path) -> None:
    write(tmp_path, schemas(lambda label: str(1 - int(label))), (0, 0))

    class Samples:
        lengths, truncated = np.array([8]), 0

    train, dev = (
        Split(examples=load_task("wnli").read(str(tmp_path), name, None), samples=Samples())  # type: ignore[arg-type]
        for name in ("train", "dev")
    )
    (line,) = CHECKS["task-card"](train, dev)
    assert line.startswith("task-card: text of 80 of 80 dev examples also in train")
    assert {*CHECKS} == {"repeats", "task-card"}
