"""Auxiliary language modelling on a task's texts, in addition to the task's own loss.

The head is the pretraining head of the checkpoint, on the encoder that the task trains: masked
tokens (mlm), or next tokens for left-to-right models (lm; Radford et al. 2018, section 3.2). It is
part of the trained network, as `auxiliary`, and no part of the finished checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.core.ragged import offsets_of
from cloze.model.data.batch import filled
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_model, without_training_modules
from cloze.model.layers.batch import Batch, extend
from cloze.model.layers.cross_entropy import enable_lazy_logits
from cloze.model.layers.encoder import Encoder
from cloze.model.objectives import Objective, objectives
from cloze.model.random_streams import Stream
from cloze.pipeline import tokenizer
from cloze.pipeline.dataset.masking.candidates import MaskConfig, TokenProperties, UnmaskedRows
from cloze.pipeline.dataset.masking.draw import sample_masks

AUXILIARY = "auxiliary"  # module of the network, and first part of its parameters' names
MASKED_IDS = "masked_ids"  # batch entry: int64 [B, L], the tokens with masks


@dataclass(frozen=True, slots=True, kw_only=True)
class Auxiliary:
    """An auxiliary objective of a training.

    Attributes:
        objective: mlm or lm.
        weight: weight of its mean loss, next to the task's with weight 1.
        model: pretraining model on the task's encoder; `add_auxiliary` registers its head.
        tokens: token properties, for masks.
        seed: seed of the masks.
    """

    objective: Objective
    weight: float
    model: nn.Module
    tokens: TokenProperties
    seed: int

    def inputs(self, batch: Batch, step: int) -> Batch:
        """Return a batch on the CPU with masks, which depend on seed, step and the row's tokens."""
        if self.objective.reads != "masked":
            return batch
        ids, real = batch["input_ids"].numpy(), batch["attention_mask"].numpy()
        lengths, length = real.sum(axis=1), ids.shape[1]
        by_token = random_keys.fold_in(np.arange(length), ids)
        texts = np.bitwise_xor.reduce(np.where(real, by_token, np.uint64(0)), axis=1)
        rows = UnmaskedRows(
            keys=random_keys.fold_in(self.seed, Stream.AUXILIARY_MASKS, texts),
            input_ids=ids[real],
            offsets=offsets_of(lengths),
            segment_start=lengths,
        )
        masks = sample_masks(rows, MaskConfig(), self.tokens, [step])
        starts = np.repeat(np.arange(len(ids)) * length, np.diff(masks.offsets))
        positions = (starts + masks.positions).astype(np.int64)
        masked_ids = ids.copy()
        masked_ids.reshape(-1)[positions] = masks.input_ids
        masked_positions, labels = filled(positions, ids.reshape(-1)[positions])
        fields = {"masked_positions": masked_positions, "masked_labels": labels}
        return extend(batch, {MASKED_IDS: torch.from_numpy(masked_ids), **fields})

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the objective's loss and right answers for a batch on the device."""
        shown = extend(batch, {"input_ids": batch.get(MASKED_IDS, batch["input_ids"])})
        return self.objective.loss(self.model(shown), shown)


def add_auxiliary(
    network: nn.Module,
    wanted: Mapping[Literal["mlm", "lm"], float],
    config: ModelConfig,
    state: Mapping[str, Tensor],
    vocabulary: str,
    seed: int,
) -> Auxiliary | None:
    """Register the head of an auxiliary objective in a task's network.

    Args:
        wanted: weight by name of the objective; empty: none.
        state: weights of the checkpoint; empty: the head begins with random weights.
        vocabulary: tokenizer directory.
        seed: seed of the masks, and of random weights.

    Raises:
        UsageError: the family has no such head, or the checkpoint lacks its weights.
    """
    if not wanted:
        return None
    ((name, weight),) = wanted.items()
    (objective,) = objectives([name])
    if objective.head not in config.heads:
        raise UsageError(
            f"auxiliary ({name}) needs the head {objective.head}, which models of the family "
            f"{config.family} lack; use {'lm' if name == 'mlm' else 'mlm'}, or leave it out"
        )
    torch.manual_seed(int(random_keys.fold_in(seed, Stream.AUXILIARY_WEIGHTS)))
    model = new_model(config)
    model.pair = None
    # A pooler that transforms every position is part of the head, as in ModernBERT.
    parts = {
        part: module
        for part, module in model.named_children()
        if part != "encoder" and (part != "pooler" or hasattr(module, "transform"))
    }
    for part, module in parts.items() if state else ():
        prefix = f"{part}."
        own = {
            key.removeprefix(prefix): value
            for key, value in state.items()
            if key.startswith(prefix)
        }
        if own.keys() != module.state_dict().keys():
            raise UsageError(
                f"auxiliary ({name}) needs the checkpoint's {part}, which it lacks, as fine-tuning "
                f"keeps no pretraining head; name a pretrained checkpoint"
            )
        module.load_state_dict(own)
    model.encoder = cast(Encoder, network.get_submodule("encoder"))
    enable_lazy_logits(model)
    if hasattr(model, "predicts_all_positions"):
        model.predicts_all_positions = False
    network.add_module(AUXILIARY, nn.ModuleDict(parts).train())
    return Auxiliary(
        objective=objective,
        weight=weight,
        model=model,
        tokens=TokenProperties.of(tokenizer.load(vocabulary)),
        seed=seed,
    )


def without_auxiliary(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a network without those that only its training used."""
    own = without_training_modules(state)
    return {name: value for name, value in own.items() if not name.startswith(f"{AUXILIARY}.")}
