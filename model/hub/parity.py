"""Do transformers and we compute the same from the same weights? The check that every export runs."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from model.checkpoint import CONFIG, Loaded
from model.families.config import ModelConfig
from model.families.hub import EMBEDDING, POOLED, Hub, hub_of, task_head
from model.families.models import Transform, restore, restore_backbone
from pipeline.core import storage

TOLERANCE = 1e-5  # of the largest logit, or of 1 where all are smaller: fp32 has 7 digits
LENGTHS = (64, 37, 11, 3)  # of the rows compared, where the model has that many positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The largest difference between two sets of logits, and the same relative to max(1, largest logit)."""

    absolute: float
    relative: float


def transformers_installed() -> bool:
    return importlib.util.find_spec("transformers") is not None


def compare_with_transformers(loaded: Loaded, directory: str) -> Difference | None:
    """Open `directory` with transformers and compare all logits with those of the checkpoint `loaded`, in fp32 on the CPU.

    Returns:
        None where transformers is not installed.
    """
    if not transformers_installed():
        return None
    batch = probe(loaded.model)
    ours = our_logits(loaded, batch)
    theirs = their_logits(directory, hub_of(loaded.model.family), batch, _head(loaded.heads))
    absolute = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    largest = max(float(logits.abs().max()) for logits in ours.values())
    return Difference(absolute=absolute, relative=absolute / max(1.0, largest))


def probe(model: ModelConfig) -> dict[str, Tensor]:
    """A batch of random ids in rows of several lengths, each with two segments, padded; every real position is predicted."""
    lengths = torch.tensor([min(length, model.max_position_embeddings) for length in LENGTHS])
    generator = torch.Generator().manual_seed(0)
    longest = int(lengths.max())
    real = torch.arange(longest) < lengths[:, None]
    ids = torch.randint(model.vocab_size, real.shape, generator=generator)
    pad = torch.tensor(model.pad_token_id)
    ids = ids.where(ids != pad, (pad + 1) % model.vocab_size).where(real, pad)  # some families find padding by its id
    second = (torch.arange(longest) >= lengths[:, None] // 2) & real & torch.tensor(model.type_vocab_size > 1)
    return {
        "input_ids": ids,
        "attention_mask": real,
        "token_type_ids": second.long(),
        "masked_positions": real.flatten().nonzero().squeeze(1),
    }


@torch.inference_mode()
def our_logits(loaded: Loaded, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's logits that transformers has too, at real tokens; or those of its head of fine-tuning, by the head's name.

    Of a model of vectors, what stands for logits are the encoder's states.
    """
    head = _head(loaded.heads)
    if head is not None:
        backbone = restore_backbone(loaded.model, loaded.state)
        states = backbone.encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
        if head == EMBEDDING:
            return {head: _real(states, batch)}
        if head in POOLED:
            states = backbone.pooler(states, batch["attention_mask"])
        elif backbone.transforms:
            states = cast(Transform, backbone.pooler).transform(states)
        logits = functional.linear(states, loaded.state[f"{head}.weight"], loaded.state.get(f"{head}.bias"))
        return {head: _real(logits, batch)}
    outputs = restore(loaded.model, loaded.state)(batch)
    names = set(hub_of(loaded.model.family).outputs.values())
    return {name: _real(outputs[name], batch) for name in sorted(names & outputs.keys())}


@torch.inference_mode()
def their_logits(directory: str, hub: Hub, batch: Mapping[str, Tensor], head: str | None) -> dict[str, Tensor]:
    """What transformers computes from `directory`, in the form of `our_logits`."""
    import transformers

    architecture = json.loads(storage.read_text(storage.join(directory, CONFIG)))["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(directory, local_files_only=True, dtype=torch.float32).eval()
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"].long()}
    segments = hasattr(model.config, "type_vocab_size")  # GPT-2 looks token_type_ids up among the words
    if segments and "token_type_ids" in inspect.signature(model.forward).parameters:
        inputs["token_type_ids"] = batch["token_type_ids"]
    if head == "choice":  # one example, of which every row is a choice
        return {head: model(**{name: tensor[None] for name, tensor in inputs.items()}).logits.transpose(0, 1)}
    outputs = model(**inputs)
    if head == EMBEDDING:
        return {head: _real(outputs.last_hidden_state, batch)}
    if head == "span":
        return {head: _real(torch.stack([outputs.start_logits, outputs.end_logits], dim=-1), batch)}
    if head is not None:
        return {head: _real(outputs.logits, batch)}
    return {ours: _real(outputs[theirs], batch) for theirs, ours in hub.outputs.items() if theirs in outputs}


def _head(heads: Mapping[str, object]) -> str | None:
    return EMBEDDING if EMBEDDING in heads else task_head(heads)


def _real(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Of logits at every position those at real tokens; others as they are."""
    return logits.flatten(0, 1)[batch["masked_positions"]] if logits.shape[:2] == batch["input_ids"].shape else logits
