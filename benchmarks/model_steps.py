"""A training step of our model and of transformers' own class, over random rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from cloze.model.data import layouts
from cloze.model.data.batch import move
from cloze.model.data.layouts import Sequences, layout_for, make_layout
from cloze.model.families import models
from cloze.model.families.config import ModelConfig
from cloze.model.families.hub_formats import hub_of
from cloze.model.layers.batch import IGNORE_INDEX, Batch
from cloze.model.train.config import PretrainConfig
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.optimizers.adam import adamw
from cloze.model.train.optimizers.parameters import parameter_groups
from cloze.model.train.precision import DTYPES, Precision, autocast
from cloze.model.train.setup import hyperparameters, step_duration

RATE = 0.15625  # of the positions are predicted: 20 of 128
SHORTEST = 8  # tokens of a sequence, where rows are not all full of one

Unpad = Literal["auto", "always", "never"]
RowKind = Literal["full", "ragged", "packed"]
Step = Callable[[Batch], float]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run a training step."""

    precision: Precision
    theirs: bool = False
    compiled: bool = False
    unpad: Unpad = "auto"
    kept: bool = True  # freed memory, as `cloze` has its ranks keep it

    @property
    def name(self) -> str:
        how = (
            "compiled"
            if self.compiled
            else {"auto": "", "always": "unpadded", "never": "padded"}[self.unpad]
        )
        kept = "with our memory settings" if self.theirs and self.kept else ""
        return " ".join(
            part
            for part in ("theirs" if self.theirs else "ours", self.precision, how, kept)
            if part
        )


def make_batches(
    config: ModelConfig, count: int, rows: int, length: int, kind: RowKind, device: str
) -> list[Batch]:
    """Random ids. Ragged rows have the lengths of encyclopedia paragraphs cut at `length`:
    log-normal, half of it in the mean. Packed ones are full of sequences of such lengths, of which
    the row cuts the last.
    """
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        lengths, first = torch.full((rows,), length), torch.zeros(rows, length, dtype=torch.bool)
        first[:, 0] = True
        if kind != "full":
            drawn = (
                torch.exp(torch.randn(rows, length // SHORTEST, generator=generator) * 0.7)
                * 0.42
                * length
            )
            drawn = drawn.long().clamp(SHORTEST, length)
        if kind == "ragged":
            lengths = drawn[:, 0]
        if kind == "packed":
            begins = drawn.cumsum(1)
            row = torch.arange(rows)[:, None].expand_as(begins)
            first[row[begins < length], begins[begins < length]] = True
        real = torch.arange(length) < lengths[:, None]
        ids = torch.randint(5, config.vocab_size, (rows, length), generator=generator).where(
            real, config.pad_token_id
        )
        order = torch.rand(rows, length, generator=generator).masked_fill(~real, 2.0).argsort(1)
        is_target = torch.arange(length) < (lengths[:, None] * RATE).round().clamp(min=1)
        masked = torch.zeros_like(real).scatter_(1, order, is_target)
        positions = masked.flatten().nonzero().squeeze(1)
        labels = torch.randint(5, config.vocab_size, positions.shape, generator=generator)
        filler = -len(positions) % 64
        second = (
            (torch.arange(length) >= lengths[:, None] // 2)
            & real
            & torch.tensor(config.type_vocab_size > 1)
        )
        batch = {
            "input_ids": ids,
            "attention_mask": real,
            "token_type_ids": second.long(),
            "masked_positions": nn.functional.pad(positions, (0, filler)),
            "masked_labels": nn.functional.pad(labels, (0, filler), value=IGNORE_INDEX),
            "pair_labels": torch.randint(0, 2, (rows,), generator=generator),
            **({"sequence_first": first} if kind == "packed" else {}),
        }
        batches.append(move(batch, torch.device(device)))
    return batches


def with_layouts(
    batches: list[Batch], variant: Variant, config: ModelConfig, device: str
) -> list[Batch]:
    """The batches as the variant lays them out; the collator does it in a thread of its own."""
    found = []
    with torch.device("meta"):
        network = models.new_model(config)
    kind = layout_for(
        [network], torch.device(device), DTYPES[variant.precision], compiled=variant.compiled
    )
    if variant.theirs or variant.unpad == "never":
        kind = "rows"
    for batch in batches:
        sequences = sequences_of(batch)
        forced = kind == "buckets" and variant.unpad == "always"
        lies = layouts.buckets(sequences) if forced else make_layout(kind, sequences)
        found.append(batch if lies is None else {**batch, "layout": lies.to(torch.device(device))})
    return found


def sequences_of(batch: Batch) -> Sequences:
    """Those of its rows."""
    real = batch["attention_mask"].cpu().numpy()
    if "sequence_first" not in batch:
        return Sequences.alone(real.sum(axis=1), real.shape[1])
    first = np.flatnonzero(batch["sequence_first"].cpu().numpy())  # packed rows are full
    return Sequences(
        shape=real.shape, first=first, lengths=np.diff(first, append=real.size), packed=True
    )


def make_step(variant: Variant, config: PretrainConfig, device: str) -> Step:
    """The variant's training step, with the weights that seed 0 gives."""
    torch.manual_seed(0)
    model = models.new_model(config.model)
    if variant.theirs:
        module, loss_of = theirs(variant.precision, config.model, model, device)
    else:
        module, loss_of = _ours(variant, config.model, model, device)
    module.to(device).train()
    settled = hyperparameters(config, variant.precision, step_duration(config))
    optimizer = adamw(parameter_groups(module, settled), settled)

    def step(batch: Batch) -> float:
        loss = loss_of(batch)
        loss.backward()
        if variant.theirs:
            torch.nn.utils.clip_grad_norm_(module.parameters(), config.grad_clip)
        else:
            parameters = list(module.parameters())
            norm = get_total_norm([value.grad for value in parameters if value.grad is not None])
            if float(norm) > config.grad_clip > 0:  # as the engine, which passes over them no more
                clip_grads_with_norm_(parameters, config.grad_clip, norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def _ours(
    variant: Variant, config: ModelConfig, model: Any, device: str
) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    names = ("mlm", "nsp") if "pair" in config.heads else ("mlm",)
    scoring = PretrainModule(model, names, variant.precision, variant.compiled, device)

    def loss_of(batch: Batch) -> Tensor:
        counts = torch.tensor(
            [max(1, count) for count in scoring.count_targets(batch)],
            dtype=torch.float32,
            device=device,
        )
        return cast(Tensor, scoring(batch, counts)[0])

    return scoring, loss_of


def theirs(
    precision: Precision, config: ModelConfig, model: Any, device: str
) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """The class that `cloze export` names, with the weights of `model`, trained as transformers'
    documentation says.
    """
    import transformers

    hub = hub_of(config.family)
    values = hub.to_config(config, config.heads, None)
    architecture = hub.architecture(config.heads)  # of all heads; an export leaves the pair's out
    module = getattr(transformers, architecture)(transformers.AutoConfig.for_model(**values))
    module.load_state_dict(hub.to_state(model.state_dict()), strict=False)
    module.tie_weights()
    pair = {"next_sentence_label": "pair_labels"} if "pair" in config.heads else {}
    segments = ("token_type_ids",) if config.type_vocab_size > 1 else ()

    def loss_of(batch: Batch) -> Tensor:
        # no question to the device: what is filler goes to a place behind the last one
        labels = torch.full(
            (batch["input_ids"].numel() + 1,), IGNORE_INDEX, device=batch["input_ids"].device
        )
        filler = batch["masked_labels"] == IGNORE_INDEX
        labels[batch["masked_positions"].masked_fill(filler, len(labels) - 1)] = batch[
            "masked_labels"
        ]
        inputs = {name: batch[name] for name in ("input_ids", *segments)} | {
            name: batch[ours] for name, ours in pair.items()
        }
        with autocast(precision, device):
            loss: Tensor = module(
                **inputs,
                attention_mask=batch["attention_mask"].long(),
                labels=labels[:-1].view_as(batch["input_ids"]),
            ).loss
        return loss

    return module, loss_of
