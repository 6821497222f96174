"""Held-out rows: how they are divided, counted, guessed and summed up."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from cloze.core.errors import NotFiniteError
from cloze.model.data.mixture import ConcatenatedRows
from cloze.model.data.shards import ShardedRows
from cloze.model.train.distributed import World
from cloze.model.train.evaluate import heldout as module
from cloze.model.train.evaluate.heldout import (
    HeldoutEvaluator,
    HeldoutSet,
    entropy,
    evaluate,
    unigram_baselines,
)
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.spec.interfaces import EvaluationInterrupted
from tests.model.datasets import write_dataset

CPU = torch.device("cpu")
ONE = World(0, 1, CPU)
VOCABULARY = 64


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    return ShardedRows(write_dataset(tmp_path_factory.mktemp("heldout") / "dataset"))


def held(shards: Any, rows: int, batch: int = 8) -> HeldoutSet:
    return HeldoutSet(shards, rows, batch, pad=0, mask=4, longest=32)


class Scoring:
    """Losses by the number of targets: 2 nats and half of them correct for each mlm prediction."""

    names = ("mlm", "nsp")
    detail_names = ("mlm_masked_accuracy", "mlm_top5_accuracy")

    def __init__(self, loss: float = 2.0, pairs: bool = True) -> None:
        self.modes: list[str] = []
        self.seen: list[dict[str, Any]] = []
        self.each, self.pairs = loss, pairs

    def eval(self) -> None:
        self.modes.append("eval")

    def train(self) -> None:
        self.modes.append("train")

    def count_targets(self, batch: Any) -> list[int]:
        return [int((batch["masked_labels"] >= 0).sum()), len(batch["input_ids"]) * self.pairs]

    def __call__(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.append(batch)
        mlm, nsp = self.count_targets(batch)
        figures = [[mlm * self.each, nsp * 0.5], [mlm * 0.5, nsp]]
        details = [[mlm * 3.0, 0.0], [mlm, 0.0]]
        return torch.tensor(figures).double(), torch.tensor(details).double()


def score(
    scoring: Scoring, heldout: HeldoutSet, world: World = ONE, **how: Any
) -> dict[str, float]:
    return evaluate(cast(PretrainModule, scoring), heldout, world, **how)


def test_the_figures_of_one_dataset(rows: ShardedRows) -> None:
    scoring, groups = Scoring(), list[tuple[float, float]]()
    found = score(scoring, held(rows, 20), groups=groups)
    assert found == {
        "heldout_loss": 2.0,
        "heldout_accuracy": 0.5,
        "heldout_nsp_loss": 0.5,
        "heldout_nsp_accuracy": 1.0,
        "heldout_masked_accuracy": 3.0,
        "heldout_perplexity": 7.389056,
    }
    assert scoring.modes == ["eval", "train"]
    assert [len(batch["input_ids"]) for batch in scoring.seen] == [6, 7, 7]
    assert all(int(batch["mask_id"]) == 4 for batch in scoring.seen)
    assert [loss / count for count, loss in groups] == [2.0] * 3
    assert sum(count for count, _ in groups) == held(rows, 20).target_counts(VOCABULARY).sum()


def test_what_has_no_targets_has_no_figure(rows: ShardedRows) -> None:
    scoring = Scoring(pairs=False)
    found = score(scoring, held(rows, 3))
    assert set(found) == {
        "heldout_loss",
        "heldout_accuracy",
        "heldout_masked_accuracy",
        "heldout_perplexity",
    }
    assert score(Scoring(loss=1000.0), held(rows, 3))["heldout_perplexity"] == round(
        math.exp(700.0), 6
    )
    assert score(Scoring(), held(rows, 0)) == {}


def test_a_stop_and_a_figure_that_is_none(rows: ShardedRows) -> None:
    scoring, asked = Scoring(), iter([False, True])
    with pytest.raises(EvaluationInterrupted):
        score(scoring, held(rows, 20), stop_requested=lambda: next(asked))
    assert len(scoring.seen) == 1
    assert scoring.modes == ["eval", "train"]
    with pytest.raises(NotFiniteError, match="held-out rows"):
        score(Scoring(loss=math.nan), held(rows, 20))


def test_a_mixture_is_divided_by_its_weights(rows: ShardedRows, tmp_path: Path) -> None:
    other = ShardedRows(write_dataset(tmp_path / "other", rows=9, seed=1))
    mixture = ConcatenatedRows({"wiki": rows, "books": other}, [0.75, 0.25])
    for total, wanted in ((96, (72, 9)), (40, (30, 9)), (20, (15, 9)), (8, (6, 4)), (2, (2, 1))):
        parts = held(mixture, total).parts()
        assert [(name, part.rows) for name, part in parts] == list(
            zip(("wiki", "books"), wanted, strict=True)
        ), total
        assert [part.shards for _, part in parts] == [rows, other]
    assert held(rows, 5).parts() == [("", held(rows, 5))]
    found = score(Scoring(), held(mixture, 40))
    own = {name: value for name, value in found.items() if name.endswith(("wiki", "books"))}
    assert own == {
        **dict.fromkeys(("heldout_loss_wiki", "heldout_loss_books"), 2.0),
        **dict.fromkeys(("heldout_nsp_loss_wiki", "heldout_nsp_loss_books"), 0.5),
    }


@pytest.mark.parametrize(
    ("total", "batch", "ranks"), [(20, 8, 1), (20, 8, 3), (5, 2, 4), (2, 8, 3), (24, 4, 2)]
)
def test_ranks_read_every_row_once_in_equally_many_batches(
    rows: ShardedRows, total: int, batch: int, ranks: int
) -> None:
    heldout = held(rows, total, batch)
    by_rank = [heldout.batches(World(rank, ranks, CPU)) for rank in range(ranks)]
    read = [row for ranges in by_rank for start, stop in ranges for row in range(start, stop)]
    assert read == list(range(total))
    assert {len(ranges) for ranges in by_rank} == {math.ceil(math.ceil(total / ranks) / batch)}
    assert all(stop - start <= batch for ranges in by_rank for start, stop in ranges)


def test_a_batch_is_the_rows_in_their_order(rows: ShardedRows) -> None:
    heldout = held(rows, 20)
    batch, nothing = heldout.load(3, 7), heldout.load(7, 7)
    assert len(batch["input_ids"]) == 4
    assert set(nothing) == set(batch) - {"source"}
    for number, ids in enumerate(batch["input_ids"].tolist()):
        own = heldout.load(3 + number, 4 + number)["input_ids"][0].tolist()
        assert own == ids[: len(own)]
        assert not any(ids[len(own) :])
    assert int((nothing["masked_labels"] >= 0).sum()) == 0


def _targets(rows: ShardedRows, count: int) -> Counter[int]:
    counts: Counter[int] = Counter()
    for row in range(count):
        labels = held(rows, count).load(row, row + 1)["masked_labels"]
        counts.update(labels[labels >= 0].tolist())
    return counts


def test_targets_are_counted_over_all_reads(
    rows: ShardedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNT_ROWS", 7)
    wanted = _targets(rows, 20)
    counts = held(rows, 20).target_counts(VOCABULARY)
    assert {token: count for token, count in enumerate(counts) if count} == wanted
    assert counts.dtype == np.int64
    assert len(counts) == VOCABULARY


def test_guessing_without_context(rows: ShardedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    heldout, wanted = held(rows, 20), _targets(rows, 20)
    monkeypatch.setattr(module, "UNIGRAM_ROWS", 50)
    train = module.target_count_rows(heldout, rows)
    assert train == held(rows, 50)
    monkeypatch.setattr(module, "UNIGRAM_ROWS", 97)
    assert module.target_count_rows(heldout, rows) == held(rows, 96)
    trained = _targets(rows, 50)
    smoothed = {token: 1 + trained[token] for token in range(VOCABULARY)}
    total, seen = sum(wanted.values()), sum(smoothed.values())
    own = -sum(n / total * math.log(n / total) for n in wanted.values())
    loss = -sum(n / total * math.log(smoothed[token] / seen) for token, n in wanted.items())
    assert unigram_baselines(train, heldout, VOCABULARY) == {
        "unigram_entropy": pytest.approx(own, abs=1e-6),
        "unigram_loss": pytest.approx(loss, abs=1e-6),
    }
    assert unigram_baselines(train, held(rows, 0), VOCABULARY) == {}
    assert entropy(np.array([4, 0, 4])) == pytest.approx(math.log(2))


def test_tokens_are_counted_in_enough_rows_and_no_more() -> None:
    many: Any = range(10**6)
    assert module.target_count_rows(held(many, 5), many).rows == 20_000


def test_random_guessing_has_a_loss_if_each_objective_has() -> None:
    network = torch.nn.Linear(1, 1)
    assert PretrainModule(network, ("mlm", "nsp"), "fp32").chance(8) == pytest.approx(
        math.log(8) + math.log(2)
    )
    assert PretrainModule(network, ("mlm",), "fp32").chance(8) == pytest.approx(math.log(8))


def test_the_lowest_loss_is_the_best() -> None:
    usual = {name: field.default for name, field in HeldoutEvaluator.__dataclass_fields__.items()}
    assert usual["best_metric"] == "heldout_loss"
    assert (usual["every"], usual["row_seconds"]) == (None, None)
