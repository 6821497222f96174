"""States of all layers of an encoder, and how the layers differ: the stage layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core.errors import DataError, UsageError
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.inside.layer_stages import LayersConfig
from cloze.model import checkpoint
from cloze.model.data.batch import move
from cloze.model.families.models import load_backbone
from cloze.model.families.pretraining import encode as encode_batch
from cloze.model.layers.encoder import layer_count, layer_states
from cloze.model.tasks.encode import (
    CPU_POSITIONS,
    GPU_POSITIONS,
    TextSamples,
    encode,
    evaluation_batches,
)
from cloze.model.tasks.files import METRICS_FILE, write_json
from cloze.model.train.distributed import init_distributed
from cloze.model.use.likelihood import read_texts
from cloze.pipeline import tokenizer

LENGTH = 128  # maximum tokens of a text


def run(config: LayersConfig, build: BuildContext) -> StageResult:
    """Compare the layers of a checkpoint with each other, and with those of another one.

    Returns:
        summary: `layers`, by layer from 1: `distance` and `angle` (degrees) of its output from its
            input, means over tokens, and linear CKA with its input, the last layer, and the other
            checkpoint's same layer; `cka` and `cka_other`, of all pairs of layers from 0;
            `metrics`: means over layers.

    Raises:
        UsageError: the tokenizers differ, or a model has a decoder.
        DataError: a checkpoint or the file is missing or damaged.
    """
    device = init_distributed(build.execution).device
    loaded = {
        role: checkpoint.load_input(build, build.inputs[role])
        for role in ("checkpoint", "other")
        if role in build.inputs
    }
    pieces = [tokenizer.load(own.tokenizer) for own in loaded.values()]
    if pieces[0].fingerprint != pieces[-1].fingerprint:
        raise UsageError(
            f"{build.inputs['other']} has another tokenizer than {build.inputs['checkpoint']}; "
            f"compare checkpoints with the same one"
        )
    texts = [line.text for line in read_texts(config.texts)]
    if not texts:
        raise DataError(f"{config.texts} is empty; write a text per line")
    longest = min(own.model.max_position_embeddings for own in loaded.values())
    samples = encode(texts, None, pieces[0], min(LENGTH, longest))
    needed = int(np.searchsorted(samples.lengths.cumsum(), config.tokens)) + 1
    states, *others = [
        token_states(load_backbone(own.model, own.state).encoder, samples, device, needed)
        for own in loaded.values()
    ]
    states, others = states[: config.tokens], [other[: config.tokens] for other in others]
    distances, angles = changes(states)
    similarity = cka(states, states)
    summary: dict[str, Any] = {"cka": similarity.tolist()}
    columns = {
        "distance": distances,
        "angle": angles,
        "cka_input": similarity.diagonal(1),
        "cka_last": similarity[1:, -1],
    }
    for other in others:
        between = cka(states, other)
        summary["cka_other"] = between.tolist()
        if between.shape[0] == between.shape[1]:
            columns["cka_other"] = between.diagonal()[1:]
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    summary |= {
        "metrics": {name: float(column.mean()) for name, column in columns.items()},
        "layers": [
            {"layer": layer, **dict(zip(columns, row, strict=True))}
            for layer, row in enumerate(rows, 1)
        ],
        "step": loaded["checkpoint"].step,
    }
    write_json(build.file(METRICS_FILE), summary)
    return StageResult(rows=min(needed, len(texts)), tokens=len(states), summary=summary)


def token_states(
    encoder: nn.Module, samples: TextSamples, device: torch.device, count: int | None = None
) -> Tensor:
    """Return the states of all tokens in all layers, fp32 [tokens, layers + 1, D], on the CPU.

    Args:
        count: number of samples to read, the first ones. Default: all.

    Raises:
        UsageError: the model has a decoder.
    """
    encoder = encoder.to(device).eval()
    lengths = samples.lengths[:count]
    begins = lengths.cumsum() - lengths
    layers = range(1 + layer_count(encoder))
    states = torch.zeros(0)
    for indices in evaluation_batches(
        lengths, CPU_POSITIONS if device.type == "cpu" else GPU_POSITIONS
    ):
        batch: Any = move(samples.batch(indices, "rows"), device)
        run = partial(encode_batch, encoder, batch["input_ids"], batch)
        with torch.inference_mode():
            found = layer_states(encoder, layers, run)
        stacked = torch.stack(found, dim=2).float().cpu()
        if not len(states):
            states = stacked.new_zeros(int(lengths.sum()), *stacked.shape[2:])
        for index, row in zip(indices.tolist(), stacked, strict=True):
            states[begins[index] : begins[index] + lengths[index]] = row[: lengths[index]]
    return states


def changes(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean L2 distance of each layer's output from its input, and the mean angle.

    Args:
        states: fp32 [tokens, layers + 1, D].

    Returns:
        fp64 [layers] and, in degrees, fp64 [layers].
    """
    before, after = states[:, :-1].double(), states[:, 1:].double()
    cosines = torch.cosine_similarity(before, after, dim=-1).clamp(-1, 1)
    angles = torch.rad2deg(torch.arccos(cosines)).mean(dim=0)
    return (after - before).norm(dim=-1).mean(dim=0), angles


def cka(states: Tensor, others: Tensor) -> Tensor:
    """Return the linear centered kernel alignment of all pairs of layers, fp64 [layers, others].

    1: equal up to rotation, shift and scale; near 0: unrelated (Kornblith et al., "Similarity of
    Neural Network Representations Revisited", 2019, section 3).

    Args:
        states: fp32 [tokens, layers, D].
        others: fp32 [tokens, others, E].
    """
    own, other = ((side - side.mean(dim=0)).double().unbind(dim=1) for side in (states, others))
    products = torch.tensor([[float((b.T @ a).norm() ** 2) for b in other] for a in own])
    norms = [torch.tensor([float((x.T @ x).norm()) for x in side]) for side in (own, other)]
    return products.double() / (norms[0][:, None] * norms[1]).clamp(min=1e-30)
