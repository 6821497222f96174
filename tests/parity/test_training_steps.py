"""A hundred steps of the trainer, of a plain torch loop, and of transformers' BertForPreTraining:
the same losses.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core import random_keys
from cloze.model.data.batch import collate
from cloze.model.data.mixture import make_sampler, training_shards
from cloze.model.families.bert import HUB
from cloze.model.families.config import ModelConfig, for_dataset
from cloze.model.families.models import new_model
from cloze.model.objectives import objectives
from cloze.model.random_streams import Stream
from cloze.model.train.optimizers.adam import adamw
from cloze.model.train.optimizers.parameters import parameter_groups
from cloze.model.train.setup import hyperparameters, step_duration
from tests.model.datasets import lines, write_dataset
from tests.model.scores import score, total_loss
from tests.model.train.ranks import STILL, config, here
from tests.parity.families import their_inputs, their_labels, transformers

STEPS = 100


def losses(
    model: nn.Module, loss_of: Any, settings: Any, batches: list[dict[str, Tensor]]
) -> list[float]:
    """The loop that anybody would write."""
    model.train()
    settled = hyperparameters(settings, "fp32", step_duration(settings))
    optimizer = adamw(parameter_groups(model, settled), settled)
    found = []
    for step, batch in enumerate(batches):
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = settled.learning_rates_at(
                settled.duration.progress_at(step, 0, 0, (0, 0))
            )["learning_rate"]
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found


def beginning(
    dataset: str, settings: Any
) -> tuple[nn.Module, ModelConfig, list[dict[str, Tensor]]]:
    """What a run of this config begins with: the model and its shape, and the batches
    of its steps.
    """
    shards = training_shards(dataset, dynamic=False)
    assert shards.info is not None
    order = make_sampler(shards, settings.seed, False, settings.global_batch)
    batches = []
    for step in range(STEPS):
        rows = shards.take(
            *order.locate(
                np.arange(step * settings.global_batch, (step + 1) * settings.global_batch)
            )
        )
        batches.append(collate(rows, pad=shards.info.special.pad, longest=shards.info.length))
    assert settings.model is not None
    shape = for_dataset(settings.model, shards.info)
    torch.manual_seed(int(random_keys.fold_in(settings.seed, Stream.WEIGHTS)))
    model = new_model(shape)
    return model, shape, batches


def ours_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    outputs = model(batch)
    return total_loss(
        [score(objective, outputs, batch) for objective in objectives(("mlm", "nsp"))]
    )


def theirs_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    real = batch["masked_labels"] != -100  # filler would overwrite a label
    masked = {
        **batch,
        "masked_positions": batch["masked_positions"][real],
        "masked_labels": batch["masked_labels"][real],
    }
    loss: Tensor = model(**their_inputs(model, batch), **their_labels(masked)).loss
    return loss


def test_a_hundred_steps_lose_the_same(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    settings = config(steps=STEPS, log_every=1, evaluate_every=STEPS, model=STILL)
    here(settings, dataset, tmp_path / "run", micro_batch=8)
    trained = [line["loss"] for line in lines(tmp_path / "run" / "metrics.jsonl")]

    model, shape, batches = beginning(dataset, settings)
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(**HUB.to_config(shape, shape.heads, None))
    )
    theirs.load_state_dict(HUB.to_state(copy.deepcopy(model.state_dict())), strict=False)
    plain = losses(model, ours_of, settings, batches)
    reference = losses(theirs, theirs_of, settings, batches)

    assert len(trained) == STEPS
    assert (
        trained[-1] < trained[0] - 0.1
    )  # it learns: equal losses of models that stand still would say little
    np.testing.assert_allclose(trained, plain, atol=1e-4)
    np.testing.assert_allclose(trained, reference, atol=1e-4)
