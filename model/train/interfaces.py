"""What a training is made of, whatever is trained. The loop (`model.train.loop`) knows these five things and nothing else:

    Source    which samples a step is made of, as batches for one rank      pretraining: a dataset's rows; a task: its examples
    Trained   batches -> loss and figures                                   pretraining: model and objectives; a task: its head
    Measure   scores on the way, such as a held-out loss                    may be absent
    Saved     what a checkpoint says of the model beside its weights
    Recipe    steps, optimizer, learning rates, schedule, clipping, seed, precision

Put together they are a `Training`, which `model.train.loop.train` runs on every rank. Weighting by global counts, checkpoints,
exact resuming, stopping, log lines and ranks are the loop's.

Batches are dicts that `Trained.forward` understands, of tensors and what else can be pinned and moved as they can.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from model.data.batch import Batch
from model.families.config import ModelConfig
from model.train.engines import EngineChoice
from model.train.pace import Moment, Pace
from model.train.precision import Precision
from model.train.schedules import Schedule
from model.train.utilisation import Utilisation
from pipeline.dataset.schema import DatasetInfo


class Interrupted(Exception):
    """The ranks agreed to stop in the middle of a measurement."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What goes forward and backward at once.

    Attributes:
        first: the number of its first sample, counted over the whole run. Dropout's random state is set from it and the step,
            so that training resumes exactly, and no two micro-batches of a step may have the same.
        batch: on the CPU. Without samples it is a blank one, whose loss and gradient are 0: every rank runs as many
            micro-batches as the others.
    """

    first: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Work:
    """One step on one rank: its micro-batches, the same number on every rank, and how many real tokens they hold; of several datasets
    also each one's.
    """

    micro_batches: Sequence[MicroBatch]
    tokens: int
    by_source: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a training begins: a phase goes on after the steps of those before it.

    Attributes:
        step: steps that were done before.
        sample: the number of its first sample in the order of its data; 0 unless the phase before read the same data.
        updates: of these steps, those that changed the weights.
        tokens: real tokens that were trained on before.
        skipped: steps that were skipped before.
        places: of datasets that were read before, by fingerprint: the next sample of each.
    """

    step: int = 0
    sample: int = 0
    updates: int = 0
    tokens: int = 0
    skipped: int = 0
    places: Mapping[str, int] = field(default_factory=dict)


START = Position()


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestones:
    """The steps whose checkpoints are saved, whatever else is, and never pruned.

    Attributes:
        steps: such steps.
        every: and all multiples of this one.
    """

    steps: frozenset[int] = frozenset()
    every: int | None = None

    def __contains__(self, step: int) -> bool:
        return step in self.steps or bool(self.every and step > 0 and step % self.every == 0)

    def within(self, first: int, last: int) -> int:
        """How many there are after step `first`, up to step `last`."""
        alone = sum(first < step <= last and not (self.every and step % self.every == 0) for step in self.steps)
        return alone + (last // self.every - first // self.every if self.every else 0)


NO_MILESTONES = Milestones()


class Source(Protocol):
    """Which samples each step is made of: a pure function of the step, so that nothing of it is saved in a checkpoint.

    Steps are counted from 0 over all phases, and may hold different numbers of samples (the last batch of an epoch, a batch that
    grows).
    """

    def work(self, step: int, rank: int, world_size: int) -> Work:
        """This rank's share of step `step`. Called in a thread of its own, a few steps ahead."""
        ...

    def samples(self, steps: int) -> int:
        """The number of the sample that step `steps` begins with: of a first phase, how many the steps before it hold together."""
        ...

    def rows(self, step: int) -> dict[str, list[int]]:
        """What step `step` was made of, over all ranks, for the file of skipped steps: `rows`, and what else tells them apart."""
        ...


class Mixed(Protocol):
    """What is counted of several datasets that a `Source` mixes."""

    def places(self, samples: int) -> dict[str, int]:
        """Each dataset's next sample, by fingerprint, where the run's is `samples`."""
        ...

    def figures(self, samples: int, tokens: Sequence[int]) -> dict[str, float]:
        """Of a log line: each dataset's rows and tokens in this phase, and its epochs.

        Args:
            tokens: each dataset's, in this phase.
        """
        ...

    def told(self, samples: int, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """The same as a checkpoint and a summary say it: of each dataset `name`, `share`, `rows`, `tokens`, `epochs`."""
        ...


class Trained(nn.Module, abc.ABC):
    """What is trained: from a batch to the loss to differentiate.

    A micro-batch's loss is, over the objectives, the sum of (its summed loss / the count of the whole step, over all ranks
    and micro-batches). Added up they are the loss of the global batch, however it was cut.

    Attributes:
        names: of the objectives.
        model: what is trained and saved: checkpoints name its parameters as it does.
    """

    names: tuple[str, ...]
    model: nn.Module

    @abc.abstractmethod
    def targets(self, batch: Mapping[str, Any]) -> list[int]:
        """How many predictions each objective makes on a batch, known before the model runs (0 for a blank one)."""

    @abc.abstractmethod
    def loss(self, batch: Mapping[str, Any], counts: Tensor) -> tuple[Tensor, Tensor]:
        """Score a batch that is on the device.

        Args:
            counts: float [objectives], what each summed loss is divided by.

        Returns:
            The loss to differentiate, an fp32 scalar; and without gradient, float64 [2, objectives], each objective's summed loss
            in nats and how many answers were right.
        """

    def predict(self, batch: Mapping[str, Any]) -> Any:
        """What a measurement wants to know of a batch that is on the device: the model's outputs, if nothing else is said."""
        return self.model(batch)

    def forward(self, batch: Mapping[str, Any], counts: Tensor | None = None) -> Any:
        """`loss`, or without counts `predict`.

        Both go through here, and never around it: at ZeRO stage 3 it is calling the whole module that gathers its weights.
        """
        return self.predict(batch) if counts is None else self.loss(batch, counts)


class Measure(Protocol):
    """Scores on the way. It draws no random numbers and changes no weights: looking more or less often changes nothing.

    How much it scores must follow from config and data alone, never from a clock, and should cost at most 5 % of training.
    """

    @property
    def best(self) -> str:
        """The figure that says which step was the best so far."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether its greatest value is the best."""
        ...

    def due(self, step: int, moment: Moment) -> bool:
        """Whether to measure after `step` steps, the last of them at that moment. The last step always is."""
        ...

    def __call__(self, step: int, moment: Moment, stop_asked: Callable[[], bool]) -> dict[str, float]:
        """The figures after `step` steps, the last of them at that moment, by name; every rank calls it, and all get the same.

        `Trained` is in training mode before and after.

        Raises:
            Interrupted: `stop_asked` was true on some rank, and the ranks agreed to stop.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a checkpoint says of the model beside its weights; see `model.checkpoint.save_weights`."""

    model: ModelConfig
    heads: Mapping[str, Any]
    tokenizer: str
    task: Mapping[str, Any] | None = None
    dataset: DatasetInfo | None = None


def everywhere(name: str) -> float:
    """The same learning rate for every parameter."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How hard and how long.

    Attributes:
        pace: how long it trains, and what its learning rate follows.
        learning_rate: the peak.
        rate: parameter's name -> what its learning rate is multiplied with (layer-wise decay, a head's own rate).
        rates: likewise, by where a parameter stands (`model.train.parameters.place`); those that are missing are 1.
        optimizer: a name in `model.train.optimizers.OPTIMIZERS`.
        schedule: the learning rate's course.
        weight_decay: decoupled, on matrices alone: not on biases and norms.
        clip: the gradient's greatest norm; 0: no clipping.
        seed: of dropout.
        precision: of the forward pass; what the optimizer sees and keeps is fp32.
        reduce: in which type gradients travel between ranks; bf16 with precision bf16 alone.
        max_skipped: steps in a row that may be skipped for a gradient that is not finite.
        ema: what of the weights' average stays at each step; None: none is kept.
    """

    pace: Pace
    learning_rate: float
    schedule: Schedule
    seed: int
    precision: Precision
    rate: Callable[[str], float] = everywhere
    rates: Mapping[str, float] = field(default_factory=dict)
    reduce: Precision = "fp32"
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip: float = 1.0
    max_skipped: int = 10
    ema: float | None = None

    def learning_rates_at(self, moment: Moment) -> dict[str, float]:
        """What a log line says of them: that of the step at that moment, and those that differ from it."""
        rate = self.learning_rate_at(moment)
        others = {f"learning_rate_{place}": rate * share for place, share in self.rates.items() if share != 1}
        return {"learning_rate": rate, **others}

    def learning_rate_at(self, moment: Moment) -> float:
        """That of the step at that moment."""
        return self.learning_rate * self.schedule.factor(moment.done, moment.whole, moment.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """All that the loop needs.

    Attributes:
        path: where metrics.jsonl, skipped.jsonl and checkpoints/ are written, a directory or an object store: the artifact's, or one
            below its scratch for a training whose result is not kept.
        config: the resolved config of the stage, as a checkpoint records it.
        engine: what runs it.
        micro_batch: the most samples at once.
        accumulation: the most micro-batches a step.
        compiled: whether `trained` runs compiled; recorded, and the same after resuming.
        expected_first_loss: what untrained weights should give, nats; None: nothing can be said.
        log_every: steps between log lines, None: a hundredth of the course; the first, the last and the measured steps always get one.
        patience: it ends after so many measurements in a row without a better one than the best; None: at the last step.
        keep_best: whether the checkpoint of the best measured step is saved and kept to the end.
        begun: where it begins; the source begins there too.
        data: the fingerprint of what the source reads; a phase on the same goes on in its order.
        milestones: whose checkpoints are kept for good.
        keep_last: so many more: the last one, and those at the last tenths of the training before it.
        utilisation: what its speed is measured by; None: nothing is told of it.
        mixed: where the source mixes several datasets, what is counted of them.
        alarms: a log line to what somebody who watches would say.
        notes, warnings, figures: told at the start, beside the loop's own.
    """

    path: str
    config: Mapping[str, Any]
    recipe: Recipe
    engine: EngineChoice
    source: Source
    trained: Trained
    saved: Saved
    measure: Measure | None = None
    micro_batch: int
    accumulation: int
    compiled: bool = False
    expected_first_loss: float | None = None
    log_every: int | None = 1
    patience: int | None = None
    keep_best: bool = False
    begun: Position = START
    data: str = ""
    milestones: Milestones = NO_MILESTONES
    keep_last: int = 1
    utilisation: Utilisation | None = None
    mixed: Mixed | None = None
    alarms: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    warnings: Sequence[str] = field(default_factory=tuple)
    figures: Mapping[str, Any] = field(default_factory=dict)
