"""Record books: the rules of a track, each broken once; p-values; what tampering does to a book."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_1samp, ttest_ind

from cloze.core.errors import DataError, UsageError
from cloze.labs.records.record_book import Book, Evidence, Record, Track, markdown


def manifest(stage: str, parents: dict[str, str], **values: Any) -> dict[str, Any]:
    config = {"seed": 7, **values.pop("config", {})}
    name = f"{stage} {config['seed']}"
    content = f"the {stage}"
    return {
        "stage": stage, "fingerprint": name, "parents": parents, "content_sha256": content,
        "config": config, **values,
    }  # fmt: skip


def evidence(seed: int, loss: float, steps: int = 100) -> Evidence:
    """A run of two phases on the book's text."""
    data = [
        manifest("corpus", {"source/books": "elsewhere"}),
        manifest("vocab", {"corpus": "corpus 7"}),
        manifest("dataset", {"corpus": "corpus 7", "vocab": "vocab 7"}, config={"length": 32}),
    ]
    first = manifest(
        "pretrain", {"dataset": "dataset 7"}, config={"seed": seed, "global_batch": 4},
        summary={"steps": 40, "begun_at": 0}, cost=[{"cpu_seconds": 3.0}, {"cpu_seconds": 9.0}],
    )  # fmt: skip
    last = {
        **copy.deepcopy(first),
        "fingerprint": f"last {seed}",
        "parents": {"dataset": "dataset 7", "continue": f"pretrain {seed}/checkpoints/step-40"},
        "summary": {"steps": steps, "begun_at": 40, "checkpoint": "checkpoints/step-100"},
        "files": [{"path": "checkpoints/step-100/model.safetensors", "sha256": f"weights {seed}"}],
    }
    return {"loss": loss, "artifacts": [last, first, *data]}


def evidences(*losses: float, steps: int = 100, first_seed: int = 1) -> list[Evidence]:
    return [evidence(first_seed + number, loss, steps) for number, loss in enumerate(losses)]


def record(track: str = "low", name: str = "new", lines: int = 0) -> Record:
    return Record(track=track, name=name, date="2026-01-01", commit="abc", lines=lines, logs=[])


@pytest.fixture
def book() -> Book:
    tracks = {
        "low": Track(title="low", steps=100, core_seconds=18, tokens_per_step=128, line_cost=0.01),
        "few": Track(title="few", goal=3.0, line_cost=5),
    }
    return Book(text={"corpus": "the corpus", "vocab": "the vocab"}, heldout="rows", tracks=tracks)


def test_phases_add_up(book: Book) -> None:
    run = book.run_of("low", evidence(3, 2.5))
    assert (run.seed, run.steps, run.core_seconds, run.checkpoint) == (3, 100, 18, "weights 3")
    of_two_ranks = evidence(3, 2.5)
    of_two_ranks["artifacts"][0]["files"] = [
        {"path": f"checkpoints/step-100/{name}", "sha256": name}
        for name in ("config.json", "model-1.safetensors", "model-2.safetensors", "training/state")
    ]
    assert book.run_of("low", of_two_ranks).checkpoint == "model-1.safetensors model-2.safetensors"


Change = Callable[[list[dict[str, Any]]], object]  # of a run's manifests: last, first, data


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda run: run[0]["summary"].update(steps=101), "took 101 steps"),
        (lambda run: run[1]["cost"].append({"cpu_seconds": 9.5}), "18.5 core-seconds"),
        (lambda run: run[1]["config"].update(global_batch=5), "160 tokens a step"),
        (lambda run: run[2].update(content_sha256="other"), "another corpus"),
        (lambda run: run[3].update(content_sha256="other"), "another vocab"),
        (lambda run: run[1].update(stage="import"), "'import'"),
        (lambda run: run.pop(1), "the continue of a run's pretrain is not near"),
        (lambda run: run.pop(4), "not by"),
    ],
)
def test_a_broken_rule_is_named(book: Book, change: Change, fault: str) -> None:
    runs = evidences(2.0, 2.1, 2.2)
    change(runs[1]["artifacts"])
    with pytest.raises(UsageError, match=fault):
        book.judge(record(), runs, [])


def test_runs_of_a_record_differ_in_seeds_alone(book: Book) -> None:
    with pytest.raises(UsageError, match="seeds"):
        book.judge(record(), evidences(2.0, 2.1), [])
    with pytest.raises(UsageError, match="seeds"):
        book.judge(record(), [*evidences(2.0, 2.1, 2.2), evidence(1, 2.0)], [])
    runs = evidences(2.0, 2.1, 2.2)
    runs[2]["artifacts"][0]["config"]["learning_rate"] = 1.0
    with pytest.raises(UsageError, match="different configs"):
        book.judge(record(), runs, [])


def test_a_lower_loss_needs_certainty_and_pays_for_lines(book: Book) -> None:
    old = book.judge(record(name="old"), evidences(2.50, 2.52, 2.54), [])
    assert old.p is None
    losses = (2.30, 2.32, 2.34)
    new = book.judge(record(), evidences(*losses, first_seed=7), [old])
    expected = ttest_ind(losses, (2.50, 2.52, 2.54), equal_var=False, alternative="less").pvalue
    assert new.p == pytest.approx(float(expected))
    assert new.p is not None
    assert new.p < 0.01
    assert book.judge(record(lines=5), evidences(*losses), [old]).p > new.p  # type: ignore[operator]
    for refused, lines in ((losses, 15), ((2.50, 2.51, 2.52), 0), ((1.9, 2.3, 2.6), 0)):
        with pytest.raises(UsageError, match="not surely below 'old'"):
            book.judge(record(lines=lines), evidences(*refused), [old])


def test_fewer_steps_need_the_goal(book: Book) -> None:
    losses = (2.94, 2.95, 2.96)
    old = book.judge(record("few", "old"), evidences(*losses), [])
    assert old.p == pytest.approx(float(ttest_1samp(losses, 3.0, alternative="less").pvalue))
    with pytest.raises(UsageError, match=r"not surely below 3\.0"):
        book.judge(record("few"), evidences(2.9, 3.0, 2.97, steps=60), [])
    assert book.judge(record("few", lines=7), evidences(*losses, steps=60), [old]).p == old.p
    with pytest.raises(UsageError, match="no fewer than 'old' takes"):
        book.judge(record("few", lines=8), evidences(*losses, steps=60), [old])


def test_a_book_shows_what_was_changed(book: Book, tmp_path: Path) -> None:
    for name, runs in (
        ("old", evidences(2.50, 2.52, 2.54)),
        ("new", evidences(2.30, 2.32, 2.34, first_seed=5)),
    ):
        book.enter(record(name=name), runs, tmp_path)
    entries = Book.load(tmp_path).verify(tmp_path)
    assert [entry.record.name for entry in entries] == ["old", "new"]
    table = "\n".join(markdown(book, entries))
    assert table.index("new (2026-01-01") < table.index("old (2026-01-01")
    assert "**2.320** ± 0.020: 2.300, 2.320, 2.340" in table

    text = (tmp_path / "book.yaml").read_text()
    for old, changed, fault in (
        ("lines: 0\n  logs:", "lines: 90\n  logs:", "'new' breaks a rule: .* not surely below"),
        ("steps: 100.0", "steps: 99.0", "'old' breaks a rule: .* took 100 steps"),
        ("corpus: the corpus", "corpus: another", "another corpus"),
    ):
        assert old in text
        (tmp_path / "book.yaml").write_text(changed.join(text.rsplit(old, 1)))
        with pytest.raises(DataError, match=fault):
            Book.load(tmp_path).verify(tmp_path)
    log = tmp_path / "logs" / f"{book.records[1].logs[0]}.json.gz"
    content = gzip.decompress(log.read_bytes())
    forged = gzip.compress(content.replace(b'"loss":2.3', b'"loss":2.2'))
    for wrong in (forged, log.read_bytes()[:-9], content, b""):
        log.write_bytes(wrong)
        with pytest.raises(DataError, match="a log of 'new', is missing or was changed"):
            book.verify(tmp_path)


@pytest.mark.parametrize("text", ["", "tracks: [", "text: {}\nheldout: x\ntracks: {}\nmore: 1\n"])
def test_what_is_no_book_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "book.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"book\.yaml"):
        Book.load(tmp_path)


REPOSITORY = Path(__file__).parents[3]


def test_the_project_s_own_book_is_verified_and_its_page_has_the_tables() -> None:
    directory = REPOSITORY / "benchmarks" / "records"
    book = Book.load(directory)
    tables = "\n".join(markdown(book, book.verify(directory)))
    assert tables in (REPOSITORY / "docs/explanation/speedrun.md").read_text()
