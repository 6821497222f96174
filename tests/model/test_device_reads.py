"""Evaluation, prediction, scores and embeddings keep the device at work: results are read once, at
the end, or while the next batches are computed.

A read stands here for a wait. On a GPU `AsyncCopy` starts the copy at once and waits for it alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.labs import embed as embedding
from cloze.labs.embed import EmbeddingPipeline
from cloze.model.data.batch import move
from cloze.model.families.models import new_model
from cloze.model.layers.encoder import Encoder
from cloze.model.tasks import predict as predicting
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.heads import Frozen, FrozenNetwork
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.train.device_scalars import BEHIND, AsyncCopy, read_async
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.heldout import evaluate
from cloze.model.train.setup import prepare
from cloze.model.use import scorer as scoring
from cloze.model.use.scorer import SentenceScorer
from tests.model.datasets import write_dataset
from tests.model.stand_in import META, READ, RUN, Order, stand_in
from tests.model.train.ranks import config
from tests.tiny_models import tiny_batch, tiny_config, write_checkpoint, write_classifier

TEXTS = [f"the {animal} {verb} in paris ." for animal in ("cat", "dog") for verb in "bcdefghijkl"]


def ahead(events: list[str]) -> None:
    """While a batch is read, the device has `BEHIND` others to do."""
    batches = events.count(RUN)
    assert batches > 2 * BEHIND, "one batch shows nothing"
    assert events == [RUN] * BEHIND + [RUN, READ] * (batches - BEHIND) + [READ] * BEHIND


@pytest.mark.parametrize("batches", [3, 8])
def test_an_evaluation_reads_its_sums_once(
    batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stand_in(monkeypatch)
    dataset = write_dataset(tmp_path / "data", rows=16, heldout=16)
    build = BuildContext(
        path=str(tmp_path / "out"),
        inputs={"dataset": dataset},
        execution=Execution(),
        fingerprint="f" * 64,
    )
    setup = prepare(config(heldout_rows=16), build, world)
    setup.scoring.to(META)
    rows = 16 // batches
    heldout = replace(setup.heldout, rows=rows * batches, batch=rows)
    with Order(monkeypatch) as events:
        evaluate(setup.scoring, heldout, world)
    assert events == [RUN] * batches + [READ]


def test_groups_are_read_with_the_sums(tmp_path: Path) -> None:
    """Each batch's share of the loss, as the sums say it."""
    dataset = write_dataset(tmp_path / "data", rows=16, heldout=12)
    build = BuildContext(
        path=str(tmp_path / "out"),
        inputs={"dataset": dataset},
        execution=Execution(),
        fingerprint="f" * 64,
    )
    world = World(rank=0, size=1, device=torch.device("cpu"))
    setup = prepare(config(heldout_rows=12), build, world)
    groups: list[tuple[float, float]] = []
    found = evaluate(setup.scoring, replace(setup.heldout, batch=4), world, groups=groups)
    assert len(groups) == 3
    predictions, losses = np.array(groups).T
    assert found["heldout_loss"] == pytest.approx(losses.sum() / predictions.sum(), abs=1e-6)
    whole = evaluate(setup.scoring, replace(setup.heldout, batch=12), world)
    assert found == pytest.approx(whole, abs=1e-5)


def test_predictions_are_read_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = stand_in(monkeypatch)
    model = FinetunedModel(write_classifier(tmp_path / "checkpoint", tmp_path / "scratch"))
    model.objective.to(META)
    model._world = world
    monkeypatch.setattr(predicting, "GPU_POSITIONS", 24)
    examples = LabelledTexts(texts=TEXTS, text_pairs=None, labels=None, label_names=("a", "b"))
    with Order(monkeypatch) as events:
        found = model.predict(model.encode(examples))
    assert found.shape == (len(TEXTS), 2)
    ahead(events)


def test_a_batch_of_predictions_fills_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By positions: of short texts there are more in a batch."""
    world = stand_in(monkeypatch)
    model = FinetunedModel(write_classifier(tmp_path / "checkpoint", tmp_path / "scratch"))
    model.objective.to(META)
    model._world = world
    texts = TEXTS * 40
    examples = LabelledTexts(texts=texts, text_pairs=None, labels=None, label_names=("a", "b"))
    with Order(monkeypatch) as events:
        model.predict(model.encode(examples))
    assert events == [RUN, READ]


@pytest.mark.parametrize("chunk", [4, 1000])
def test_embeddings_are_read_behind_while_texts_are_tokenized(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch)
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    monkeypatch.setattr(embedding, "GPU_TOKENS", 24)
    monkeypatch.setattr(embedding, "TEXTS", chunk)
    embedder, done = EmbeddingPipeline(path, device=META), list[int]()
    with Order(monkeypatch) as events:
        vectors = embedder.embed(TEXTS, lambda finished, _: done.append(finished))
    assert vectors.shape == (len(TEXTS), 16)
    assert done[0] == 0
    assert done[-1] == len(TEXTS)
    ahead(events)


@pytest.mark.parametrize("mask", ["token", "whole-word"])
def test_scores_are_read_behind(mask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    monkeypatch.setattr(scoring, "GPU_TOKENS", 64)
    scorer = SentenceScorer(path, mask=mask, device=META)
    with Order(monkeypatch) as events:
        found = scorer.scored(TEXTS)
    assert len(found) == len(TEXTS)
    ahead(events)


def test_results_come_back_with_their_keys_and_in_order() -> None:
    batches = ((number, [torch.full((2,), number), torch.tensor([0.5])]) for number in range(7))
    found = [(key, first.tolist(), second.tolist()) for key, (first, second) in read_async(batches)]
    assert found == [(number, [number] * 2, [0.5]) for number in range(7)]
    assert not list(read_async(iter(())))
    half = torch.tensor([1.5], dtype=torch.bfloat16)
    ((_, (array,)),) = read_async([("bf16", [half])])
    assert array.tolist() == [1.5]
    assert AsyncCopy(half).wait() is not None


def test_frozen_features_know_their_lengths_before_the_encoder_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU that has not run the encoder yet would keep the host from starting the BiLSTM."""
    stand_in(monkeypatch)
    order: list[str] = []
    asked, waits = AsyncCopy.__init__, AsyncCopy.wait
    monkeypatch.setattr(
        AsyncCopy, "__init__", lambda copy, tensor: [order.append("asked"), asked(copy, tensor)][1]
    )
    monkeypatch.setattr(AsyncCopy, "wait", lambda copy: [order.append(READ), waits(copy)][1])
    model, batch = tiny_config(), tiny_batch(rows=4)
    how = Frozen(layers="last", lstm_size=8, lstm_layers=1)
    network = FrozenNetwork(new_model(model).encoder, nn.Identity(), how, model, 0.0).to(META)
    with register_module_forward_pre_hook(
        lambda module, _: order.append(RUN) if isinstance(module, Encoder) else None
    ):
        network(move(batch, META))
    assert order == ["asked", RUN, READ]
