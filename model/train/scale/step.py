"""How long a training step takes: the matrices, what goes beside them, the optimizer, and waiting for the network. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from model.families.config import ModelConfig
from model.train import arithmetic
from model.train.scale import network
from model.train.scale.hardware import Device
from model.train.scale.network import Links

# Model FLOPs utilisation of a GPU that computes whole micro-batches: NVIDIA's DeepLearningExamples reach 45 % (PyTorch) and 53 %
# (Paddle) with BERT-large at 128 on an A100, MosaicML's BERT-base 24 %, llm-foundry's 125M and 350M decoders 43 and 51 %.
MFU = 0.40
AGAIN = 4.0 / 3.0  # of the operations, where layers are computed again for the backward pass
LAUNCH = {"cpu": 0.0, "cuda": 4e-4}  # seconds of a layer's kernels, forward and backward, however few tokens: about 60 of 6 us
UPDATE_BYTES = 28  # that AdamW reads and writes a parameter: weight and moments both ways, and the gradient
BACKWARD = 2.0 / 3.0  # of a micro-batch's time; while the last one's runs, gradients are sent
OVERLAP = 0.7  # of it: the first gradients come late, the embeddings' last


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Seconds of a step on every rank.

    Attributes:
        compute: forward and backward of all micro-batches.
        update: the optimizer.
        network: as the ranks' messages take, seen alone.
        waiting: the part of it that nothing is computed beside.
        sent: bytes that a rank sends.
    """

    compute: float
    update: float
    network: float
    waiting: float
    sent: float

    @property
    def seconds(self) -> float:
        return self.compute + self.update + self.waiting


def step(
    model: ModelConfig,
    device: Device,
    links: Links,
    *,
    tokens: float,
    mean: float,
    accumulation: int,
    zero: int,
    checkpointing: bool = False,
    mfu: float | None = None,
    parameters: int | None = None,
    gradient: int = network.NUMBER,
) -> Step:
    """A step of a rank.

    Args:
        tokens: real ones of the rank's share of the batch.
        mean: of a row.
        accumulation: micro-batches.
        mfu: share of the device's peak that its matrices reach; None: `MFU`, and all of a CPU's, whose figure is a measured one.
        parameters: of the network, where they are known better than from the config.
        gradient: bytes of one that travels.
    """
    weights = arithmetic.approximate_parameters(model) if parameters is None else parameters
    work = arithmetic.step_work(model, mean, device.kind) * (AGAIN if checkpointing else 1.0)
    layers = model.num_hidden_layers + sum(other.num_hidden_layers for other in model.beside)
    compute = max(tokens * work / speed(device, mfu), accumulation * layers * LAUNCH[device.kind])
    update = UPDATE_BYTES * weights / (links.ranks if zero else 1) / device.bandwidth
    sent = network.rank_bytes(weights, links.ranks, zero, accumulation, gradient)
    busy = network.seconds(sent, links)
    hidden = OVERLAP * BACKWARD * compute * (1.0 if zero >= 2 else 1.0 / accumulation)
    return Step(compute=compute, update=update, network=busy, waiting=max(0.0, busy - hidden), sent=sent)


def speed(device: Device, mfu: float | None = None) -> float:
    """Operations a second that large models reach on it."""
    share = mfu if mfu is not None else 1.0 if device.kind == "cpu" else MFU
    return share * device.peak
