"""Probes: classifiers of frozen states, trained by one fixed recipe, all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core.ragged import I64
from cloze.model.tasks.encode import shuffled

BATCH, RATE, EPOCHS, PATIENCE = 128, 1e-3, 30, 3
EPOCH = 6400  # examples of an epoch, at least; fewer are repeated
MIX_RATE = 1e-2  # learning rate of the mixtures, whose few weights have far to go
UNKNOWN = -1  # label that the train split does not have
READ = 1024  # examples read at once for predictions


class Probes(nn.Module):
    """G softmax classifiers, linear or with a hidden layer, each of a mixture of some layers.

    A mixture's weights are positive and sum to 1 (scalar mix, Peters et al. 2018); that of one
    layer is the layer. All probes start from the same weights.

    Args:
        layers: bool [G, layers], the layers that each probe reads.
        size: F, features of a layer.
        hidden: width of the hidden layer; None: linear.
    """

    others: Tensor

    def __init__(
        self, layers: npt.NDArray[np.bool_], size: int, labels: int, hidden: int | None, seed: int
    ) -> None:
        super().__init__()
        others = torch.zeros(layers.shape).masked_fill(torch.from_numpy(~layers), -math.inf)
        self.register_buffer("others", others)
        self.mix = nn.Parameter(torch.zeros(layers.shape))
        generator = torch.Generator().manual_seed(seed)
        self.matrices, self.biases = nn.ParameterList(), nn.ParameterList()
        widths = [size, labels] if hidden is None else [size, hidden, labels]
        for inner, outer in zip(widths, widths[1:], strict=False):
            matrix = (torch.rand(inner, outer, generator=generator) - 0.5) * 2 / math.sqrt(inner)
            self.matrices.append(matrix.repeat(len(layers), 1, 1))
            self.biases.append(torch.zeros(len(layers), 1, outer))

    @property
    def weights(self) -> Tensor:
        """Weights of the layers, fp32 [G, layers]."""
        return torch.softmax(self.mix + self.others, dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """Map fp32 [B, layers, F] to logits, fp32 [G, B, labels]."""
        hidden = torch.einsum("gl,blf->gbf", self.weights, features)
        for number, (matrix, bias) in enumerate(zip(self.matrices, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden.relu() if number else hidden, matrix)
        return hidden


def standardize(train: Tensor, dev: Tensor) -> None:
    """Shift and scale features in place so that those of train have mean 0 and deviation 1.

    Layers of any scale are then equally easy to learn from. Both are fp32 [n, layers, F].
    """
    for layer in range(train.shape[1]):
        deviation, mean = torch.std_mean(train[:, layer].double(), dim=0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1)
        for own in (train, dev):
            own[:, layer] = ((own[:, layer] - mean) / deviation).float()


def fit(probes: Probes, features: Sequence[Tensor], labels: Sequence[I64], seed: int) -> I64:
    """Train probes, and return their predictions for the dev split, int64 [G, n].

    Each stops on its own after PATIENCE epochs without a lower loss on dev, and keeps the weights
    of its best epoch: it learns what it would have learned alone.

    Args:
        features: standardized features of train and dev.
        labels: labels of train and dev for each probe, int64 [G, n]; UNKNOWN ones do not count.
    """
    device = probes.mix.device
    train, dev = (torch.from_numpy(own).to(device) for own in labels)
    groups: list[dict[str, Any]] = [{"params": [*probes.matrices, *probes.biases]}]
    groups.append({"params": [probes.mix], "lr": MIX_RATE})
    optimizer = torch.optim.Adam(groups, RATE)
    best = torch.full((len(dev),), math.inf, device=device)
    waited, predictions = torch.zeros_like(dev[:, 0]), torch.zeros_like(dev)
    kept = {name: weight.detach().clone() for name, weight in probes.named_parameters()}
    for epoch in range(EPOCHS):
        passes = range(max(1, EPOCH // train.shape[1]))
        order = np.concatenate([shuffled(train.shape[1], seed, epoch, own) for own in passes])
        for begin in range(0, len(order), BATCH):
            numbers = torch.from_numpy(order[begin : begin + BATCH])
            logits = probes(features[0][numbers].to(device))
            loss = _losses(logits, train[:, numbers.to(device)]).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            parts = range(0, dev.shape[1], READ)
            rows = [features[1][begin : begin + READ].to(device) for begin in parts]
            logits = torch.cat([probes(own) for own in rows], dim=1)
        losses = _losses(logits, dev)
        better = (losses < best) & (waited < PATIENCE)
        best, waited = torch.where(better, losses, best), torch.where(better, 0, waited + 1)
        predictions[better] = logits.argmax(dim=2)[better]
        for name, weight in probes.named_parameters():
            kept[name][better] = weight.detach()[better]
        if bool((waited >= PATIENCE).all()):
            break
    probes.load_state_dict(kept, strict=False)
    return predictions.cpu().numpy()


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of each probe, fp32 [G], from [G, B, labels] and int64 [G, B]."""
    losses = nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=UNKNOWN, reduction="none"
    )
    return losses.sum(dim=1) / (labels != UNKNOWN).sum(dim=1).clamp(min=1)
