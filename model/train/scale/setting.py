"""What a plan is asked for, and what that is settled to: hardware, model, batch. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from model.families.config import ModelConfig
from model.families.presets import model_config
from model.train.memory import MARGIN, Computing
from model.train.scale import goodput, hardware, network
from model.train.scale.hardware import Device
from model.train.scale.network import Links
from pipeline.core.errors import UsageError

FULL = 0.95  # of a row, on average
COPIES = 10
LONGEST = 512  # tokens of a row, where no length is given and the model reads as many


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for; None: what is usual.

    Attributes:
        model: a preset's name.
        tokens: real tokens that are trained on.
        gpus: how many; None: this machine's CPU, or one, where `gpu` is given.
        gpu: a name in the table.
        length: of rows, in tokens.
        global_batch: sequences a step.
        vocabulary: pieces.
        gpus_per_node, interconnect: GPUs of a machine, and bytes a second from it to others.
        mfu: share of the GPU's peak.
        copies: mask copies of the dataset.
        epochs: how often each token is seen.
        gpu_hours: of a GPU between interruptions.
        save_seconds, restart_seconds: as measured: what a save stops the training for; from an interruption to the next step.
        ema: the decay of an average of the weights that is kept.
    """

    model: str
    tokens: float
    gpus: int | None = None
    gpu: str | None = None
    length: int | None = None
    global_batch: int | None = None
    vocabulary: int | None = None
    gpus_per_node: int | None = None
    interconnect: float | None = None
    mfu: float | None = None
    copies: int = COPIES
    epochs: float = 1.0
    gpu_hours: float = goodput.GPU_HOURS
    save_seconds: float | None = None
    restart_seconds: float | None = None
    ema: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is asked for, settled."""

    wanted: Wanted
    model: ModelConfig
    device: Device
    links: Links
    length: int
    batch: int
    mfu: float | None

    @property
    def ranks(self) -> int:
        return self.links.ranks

    @property
    def mean(self) -> float:
        """Real tokens of a row."""
        return FULL * self.length

    @property
    def rows(self) -> int:
        """The most rows of a rank in a step."""
        return -(-self.batch // self.ranks)

    @property
    def steps(self) -> int:
        return max(1, math.ceil(self.wanted.tokens / (self.batch * self.mean)))

    def computing(self, checkpointing: bool) -> Computing:
        """How a step is computed. Args: checkpointing: of activations."""
        averaging = self.wanted.ema is not None
        bf16 = self.device.computes_bf16
        return Computing(device=self.device.kind, bf16=bf16, checkpointing=checkpointing, averaging=averaging)

    @property
    def nodes(self) -> int:
        """Machines."""
        return -(-self.ranks // self.links.per_node)

    @property
    def room(self) -> float:
        """Bytes that a rank may take."""
        return self.device.memory * MARGIN / (self.ranks if self.device.kind == "cpu" else 1)


def settled(wanted: Wanted, cores: int) -> Setting:
    """The hardware, the model and the batch that are meant.

    Raises:
        UsageError: the model or the GPU is not known, or a number is out of range.
    """
    _check(wanted)
    if wanted.gpus is None and wanted.gpu is None:
        device, ranks = hardware.this_cpu(cores), 1
    elif wanted.gpu is None:
        raise UsageError(f"gpus ({wanted.gpus}) lacks the kind; add --gpu NAME, of {', '.join(hardware.GPUS)}")
    else:
        device, ranks = hardware.gpu(wanted.gpu), wanted.gpus or 1
    base = model_config(wanted.model)
    model = base.model_copy(update={"vocab_size": wanted.vocabulary or base.vocab_size or base.usual_vocabulary})
    length = wanted.length or min(LONGEST, model.max_position_embeddings)
    if length > model.max_position_embeddings:
        raise UsageError(
            f"length ({length}) is more than {wanted.model} reads ({model.max_position_embeddings}); use that or less"
        )
    batch = wanted.global_batch or model.usual_batch
    if ranks > batch:
        raise UsageError(
            f"gpus ({ranks}) is more than the sequences of a step (global_batch {batch}); use --global-batch {ranks} or more,"
            " or fewer GPUs"
        )
    per_node = min(ranks, wanted.gpus_per_node or device.per_node)
    if ranks % per_node:
        raise UsageError(f"gpus ({ranks}) must be a multiple of gpus_per_node ({per_node}); change one of them")
    links = network.links(device, ranks, per_node=per_node, between=wanted.interconnect)
    return Setting(wanted=wanted, model=model, device=device, links=links, length=length, batch=batch, mfu=wanted.mfu)


def _check(wanted: Wanted) -> None:
    for name in ("gpus", "length", "global_batch", "vocabulary", "gpus_per_node"):
        value = getattr(wanted, name)
        if value is not None and value < 1:
            remedy = "leave it out for this machine's CPU" if name == "gpus" else "use 1 or more"
            raise UsageError(f"{name} ({value}) must be at least 1; {remedy}")
    if wanted.mfu is not None and not 0 < wanted.mfu <= 1:
        raise UsageError(f"mfu ({wanted.mfu:g}) must be more than 0 and at most 1: a share of the GPU's peak")
    if wanted.ema is not None and not 0 < wanted.ema < 1:
        raise UsageError(f"ema ({wanted.ema:g}) must be more than 0 and less than 1, such as .999")
    for name in ("tokens", "interconnect", "epochs", "gpu_hours", "save_seconds", "restart_seconds"):
        value = getattr(wanted, name)
        if value is not None and (not math.isfinite(value) or value <= 0):
            raise UsageError(f"{name} ({value:g}) must be a number above 0")
