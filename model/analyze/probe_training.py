"""Probes: classifiers of frozen states, trained by one fixed recipe, all at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.model.tasks.encode import shuffled
from cloze.model.tasks.task import Ints

BATCH, RATE, EPOCHS, PATIENCE = 128, 1e-3, 30, 3
MIX_RATE = 1e-2  # learning rate of the mixtures, whose few weights have far to go
UNKNOWN = -1  # label that the train split does not have
READ = 1024  # examples read at once for a prediction


class Probes(nn.Module):
    """G softmax classifiers, linear or with a hidden layer, each of a mixture of some layers.

    A mixture's weights are positive and sum to 1 (the scalar mix of Peters et al. 2018); that of
    one layer is the layer. All probes start from the same weights.

    Args:
        layers: bool [G, layers], the layers that each probe reads.
        size: F, features of a layer.
        hidden: width of the hidden layer; None: linear.
    """

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
        return torch.softmax(self.mix + self.others, dim=1)  # type: ignore[operator]

    def forward(self, features: Tensor) -> Tensor:
        """Map fp32 [B, layers, F] to logits, fp32 [G, B, labels]."""
        hidden = torch.einsum("gl,blf->gbf", self.weights, features)
        for number, (matrix, bias) in enumerate(zip(self.matrices, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden.relu() if number else hidden, matrix)
        return hidden


class Features:
    """Features of a split, shifted and scaled so that those of the train split have mean 0 and
    deviation 1, by layer and number: layers of any scale are then equally easy to learn from.

    Args:
        values: fp32 [n, layers, F], in a file.
        train: those of the train split.
    """

    def __init__(
        self,
        values: npt.NDArray[np.float32],
        train: npt.NDArray[np.float32],
        device: torch.device,
    ) -> None:
        self._values, self._device = values, device
        layers = [train[:, layer].astype(np.float64) for layer in range(train.shape[1])]
        self._mean = np.stack([layer.mean(axis=0) for layer in layers]).astype(np.float32)
        deviation = np.stack([layer.std(axis=0) for layer in layers]).astype(np.float32)
        self._deviation = np.where(deviation > 0, deviation, np.float32(1))
        self.shape = values.shape

    def __getitem__(self, numbers: Ints | slice) -> Tensor:
        """Return some examples, fp32 [B, layers, F]."""
        return torch.from_numpy((self._values[numbers] - self._mean) / self._deviation).to(
            self._device
        )


def fit(
    probes: Probes,
    features: Sequence[Features],
    labels: Sequence[Ints],
    seed: int,
    progress: Callable[[int], None] = lambda epoch: None,
) -> Ints:
    """Train probes, and return their predictions for the dev split, int64 [G, n].

    Each stops on its own after PATIENCE epochs without a lower loss on dev, and keeps the weights
    of its best epoch: it learns what it would have learned alone.

    Args:
        features: features of train and dev.
        labels: labels of train and dev for each probe, int64 [G, n]; UNKNOWN ones do not count.
    """
    device = features[0][:1].device
    train, dev = (torch.from_numpy(own).to(device) for own in labels)
    groups = [{"params": [*probes.matrices, *probes.biases]}]
    optimizer = torch.optim.Adam([*groups, {"params": [probes.mix], "lr": MIX_RATE}], RATE)
    best = torch.full((len(dev),), math.inf, device=device)
    waited = torch.zeros(len(dev), dtype=torch.int64, device=device)
    predictions = torch.zeros_like(dev)
    kept = {name: weight.detach().clone() for name, weight in probes.named_parameters()}
    for epoch in range(EPOCHS):
        progress(epoch)
        order = shuffled(train.shape[1], seed, epoch)
        for begin in range(0, len(order), BATCH):
            numbers = order[begin : begin + BATCH]
            loss = _losses(probes(features[0][numbers]), train[:, numbers]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses, found = _evaluated(probes, features[1], dev)
        better = (losses < best) & (waited < PATIENCE)
        waited = torch.where(better, 0, waited + 1)
        best, predictions[better] = torch.where(better, losses, best), found[better]
        for name, weight in probes.named_parameters():
            kept[name][better] = weight.detach()[better]
        if bool((waited >= PATIENCE).all()):
            break
    probes.load_state_dict(kept, strict=False)
    return predictions.cpu().numpy()


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of each probe, fp32 [G], from [G, B, labels] and [G, B]."""
    losses = nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=UNKNOWN, reduction="none"
    )
    return losses.sum(dim=1) / (labels != UNKNOWN).sum(dim=1).clamp(min=1)


@torch.no_grad()
def _evaluated(probes: Probes, features: Features, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss of each probe, [G], and its predictions, int64 [G, n]."""
    logits = [probes(features[begin : begin + READ]) for begin in range(0, labels.shape[1], READ)]
    joined = torch.cat(logits, dim=1)
    return _losses(joined, labels), joined.argmax(dim=2)
