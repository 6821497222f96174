"""ELECTRA: what its generator replaces, and what each of its networks learns from that."""

from __future__ import annotations

import torch

from cloze.model.objectives import objectives
from tests.model.families.test_families import certain
from tests.model.scores import score
from tests.tiny_models import (
    tiny_batch,
    tiny_model,
)


def test_electra_replaces_masks_alone_and_labels_what_differs() -> None:
    model = tiny_model(family="electra")
    batch = tiny_batch(rows=6)
    outputs = model(batch)
    labels = outputs["rtd_labels"]
    assert labels.any()
    masked = torch.zeros(labels.numel(), dtype=torch.bool)
    masked[batch["masked_positions"]] = True
    assert not labels.flatten()[~masked].any()
    assert model(batch)["rtd_labels"].equal(labels)  # scoring draws the same again
    model.train()
    torch.manual_seed(1)
    first = model(batch)["rtd_logits"]
    torch.manual_seed(2)
    assert not model(batch)["rtd_logits"].equal(first)
    sure = certain(tiny_model(family="electra"))
    guesses = sure.generator(batch)["mlm_logits"].argmax(dim=-1)
    assert not sure({**batch, "masked_labels": guesses})[
        "rtd_labels"
    ].any()  # a right guess is no replacement
    assert sure({**batch, "masked_labels": guesses + 1})["rtd_labels"].sum() == len(guesses)


def test_electra_trains_the_generator_by_its_own_loss_alone() -> None:
    model = tiny_model(family="electra")
    batch = tiny_batch()
    outputs = model(batch)
    rtd = score(objectives(("rtd",))[0], outputs, batch)
    rtd.total.backward()
    assert all(parameter.grad is None for parameter in model.generator.parameters())
    assert model.encoder.embeddings.word.weight.grad is not None
    assert {name.split(".")[0] for name in model.state_dict()} == {
        "encoder",
        "discriminator",
        "generator",
    }
    assert not any(
        "word" in name for name in model.generator.state_dict()
    )  # embeddings are the discriminator's


def test_precision_and_recall_count_what_was_said() -> None:
    details = objectives(("rtd",))[0].details
    assert details is not None
    outputs = {
        "rtd_logits": torch.tensor([[1.0, 2.0, -1.0, -1.0, 3.0]]),
        "rtd_labels": torch.tensor([[True, False, True, False, True]]),
    }
    batch = {"attention_mask": torch.tensor([[True, True, True, True, False]])}
    found = {
        name: (int(total), int(count)) for name, (total, count) in details(outputs, batch).items()
    }
    assert found == {"precision": (1, 2), "recall": (1, 2), "replaced": (2, 4)}


def test_the_generator_draws_as_its_probabilities_say() -> None:
    """A token of probability 0 never, the others as often as they should, to four standard
    deviations; and by the seed.
    """
    model = tiny_model(family="electra").train()
    chances = torch.tensor([0.0, 0.5, 0.25, 0.0, 0.2, 0.05, 0.0])
    logits = chances.log().clamp(min=-1e4).expand(40_000, -1)
    torch.manual_seed(0)
    drawn = model._sample(logits.bfloat16())
    found = torch.bincount(drawn, minlength=7) / len(drawn)
    assert (
        (found - chances).abs()
        <= 4 * (chances * (1 - chances) / len(drawn)).sqrt() + 0.002 * chances
    ).all()  # bf16 logits
    torch.manual_seed(0)
    assert model._sample(logits.bfloat16()).equal(drawn)
    assert model.eval()._sample(logits).equal(model._sample(logits))
