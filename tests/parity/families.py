"""What the parity tests of all families share: a model of transformers with random weights, ours
with the same, and a batch.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from cloze.model.families.config import ModelConfig
from cloze.model.families.hub_format import HubFormat
from cloze.model.families.hub_formats import exportable, hub_of
from cloze.model.families.models import load_model
from cloze.model.families.pretraining import PretrainingModel
from cloze.model.hub.parity import output_names
from cloze.model.hub.read import complete
from tests.tiny_models import tiny_batch, tiny_config, variants

transformers = pytest.importorskip(
    "transformers", reason="parity is measured against transformers, which is not installed"
)

FORWARD = {"atol": 1e-5, "rtol": 0.0}
GRADIENTS = {"atol": 1e-5, "rtol": 1e-4}


class Alone(torch.nn.Module):
    """An encoder of theirs without a head, its parameters named as in a model with one."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config, self.base_model_prefix = encoder.config, encoder.base_model_prefix
        self.forward, self.save_pretrained = encoder.forward, encoder.save_pretrained
        self.add_module(encoder.base_model_prefix, encoder)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A family at tiny sizes.

    Attributes:
        changes: of the tiny config.
    """

    family: str
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def hub(self) -> HubFormat:
        return hub_of(self.family)

    @property
    def config(self) -> ModelConfig:
        return tiny_config(family=self.family, **self.changes)

    def theirs(self, heads: dict[str, Any] | None = None, seed: int = 0) -> Any:
        """A random model of transformers, biases and norms included, in evaluation mode."""
        torch.manual_seed(seed)
        task = {"name": "sst2", "labels": ["a", "b", "c"]} if heads else None
        heads = heads or self.config.heads
        values = self.hub.to_config(self.config, heads, task)
        config = transformers.AutoConfig.for_model(**values)
        model = getattr(transformers, self.hub.architecture(heads))(config).eval()
        if values.get("tie_word_embeddings") is False:  # T5's class ties them until it loads a file
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
        alone = model.base_model is model and not model.config.is_encoder_decoder
        model = Alone(model) if alone else model
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter))
        return model

    def ours(self, theirs: Any) -> PretrainingModel:
        return load_model(
            self.config,
            complete(
                self.config, self.hub.from_state(theirs.state_dict(), "theirs", None, self.config)
            ).state,
        )


# Every family that has a Hugging Face form, in all its variants.
CASES = [
    Case(family=family, changes=changes) for family in exportable() for changes in variants(family)
]
FIRST = [Case(family=family, changes=variants(family)[0]) for family in exportable()]


def case_id(case: Case) -> str:
    return "-".join([case.family, *map(str, case.changes.values())])


def batch_of(case: Case, rows: int, length: int) -> dict[str, Tensor]:
    """Rows whose padding has the padding's id, which stands nowhere else: RoBERTa and its kin find
    padding by it.
    """
    batch = tiny_batch(rows=rows, length=length, seed=length)
    padding, real = case.config.pad_token_id, batch["attention_mask"]
    other = 9 if padding != 9 else 8
    batch = case.hub.probe(case.config, {}, "", batch)
    return {
        **batch,
        "input_ids": batch["input_ids"]
        .masked_fill(batch["input_ids"] == padding, other)
        .masked_fill(~real, padding),
    }


def their_inputs(theirs: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"].long()}
    segments = getattr(
        theirs.config, "type_vocab_size", 0
    )  # GPT-2, which has none, would look the ids up among the words
    if segments and "token_type_ids" in inspect.signature(theirs.forward).parameters:
        inputs["token_type_ids"] = batch["token_type_ids"].clamp(max=segments - 1)
    if theirs.config.is_encoder_decoder:  # reads the row itself, as ours does without a target
        start = theirs.config.decoder_start_token_id
        inputs["decoder_input_ids"] = pad(batch["input_ids"][:, :-1], (1, 0), value=start)
    return inputs


def their_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of models with BERT's two heads."""
    labels = torch.full(batch["input_ids"].shape, -100).flatten()
    labels[batch["masked_positions"]] = batch["masked_labels"]
    return {
        "labels": labels.view(batch["input_ids"].shape),
        "next_sentence_label": batch["pair_labels"],
    }


def their_logits(case: Case, outputs: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """By our names; those of masked tokens at the masked positions alone."""
    found = {
        ours: outputs[theirs]
        for theirs, ours in output_names(case.config.heads).items()
        if theirs in outputs
    }
    if "mlm_logits" in found:
        found["mlm_logits"] = found["mlm_logits"].flatten(0, 1)[batch["masked_positions"]]
    return found


def at_real(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Of logits at every position those at real tokens; others as they are."""
    real = batch["attention_mask"]
    return logits[real] if logits.shape[:2] == real.shape else logits


def without_copies(hub: HubFormat, names: Any) -> set[str]:
    """Parameters of theirs that are neither tied copies nor unused by us."""
    return {name for name in names if hub.drop_of(name, tiny_config(family=hub.family)) is None}
