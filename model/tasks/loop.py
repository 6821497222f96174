"""The training loop of fine-tuning, and prediction: plain torch in one process, for runs of minutes.

AdamW, linear warm-up and decay to zero, clipping, bf16 autocast over fp32 weights where the precision rule says so.
On a CPU in fp32 the same seed gives the same weights, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from model.data.batch import Batch, move
from model.data.layouts import layout_for
from model.data.prefetch import Prefetch, prefetched
from model.tasks.encode import Encoded, Ints, collate, evaluation_batches, training_batches
from model.tasks.hardware import Hardware
from model.tasks.heads import SequenceClassifier
from model.train.optimizers import parameter_groups
from model.train.precision import DTYPES
from model.train.schedules import factor
from pipeline.core import random_keys
from pipeline.core.errors import ClozeError

BETAS, EPSILON = (0.9, 0.999), 1e-6  # optimization.py of google-research/bert
REPORT_EVERY = 10  # steps; reading a loss waits for the device
_DROPOUT = 3  # random stream, beside those of heads.py

OnStep = Callable[[int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long and how hard a classifier is trained; see `FinetuneConfig`."""

    epochs: int
    batch_size: int
    learning_rate: float
    warmup: float
    weight_decay: float
    clip: float
    seed: int

    def steps(self, examples: int) -> int:
        """Optimizer steps over that many training examples."""
        return self.epochs * math.ceil(examples / self.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """Figures of one epoch: mean training loss in nats, seconds spent training, last learning rate."""

    epoch: int
    step: int
    loss: float
    learning_rate: float
    seconds: float


def train(model: SequenceClassifier, data: Encoded, budget: Budget, hardware: Hardware, on_step: OnStep) -> Iterator[EpochEnd]:
    """Train `model` in place, yielding after every epoch (the model may be switched to evaluation meanwhile).

    Args:
        on_step: takes the number of steps done and the latest loss; called every `REPORT_EVERY` steps.

    Raises:
        ClozeError: the loss is no number any more.
    """
    optimizer = torch.optim.AdamW(
        parameter_groups(model, budget.weight_decay), lr=budget.learning_rate, betas=BETAS, eps=EPSILON, fused=True
    )
    total, step = budget.steps(len(data)), 0
    rising = math.ceil(total * budget.warmup)
    lengths = data.lengths
    for epoch in range(budget.epochs):
        torch.manual_seed(int(random_keys.derive(budget.seed, _DROPOUT, epoch)))
        model.train()
        started = time.perf_counter()
        summed = torch.zeros((), dtype=torch.float64, device=hardware.device)
        rate = 0.0
        with _batches(model, data, training_batches(lengths, budget.batch_size, budget.seed, epoch), hardware) as batches:
            for collated in batches:
                rate = budget.learning_rate * factor("linear", step, total, rising)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                batch = move(collated, hardware.device)
                with hardware():
                    logits = model(batch)
                loss = nn.functional.cross_entropy(logits, batch["labels"])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), budget.clip)
                optimizer.step()
                summed += loss.detach() * len(logits)
                step += 1
                if step % REPORT_EVERY == 0 or step == total:
                    on_step(step, _finite(loss.item(), step, budget))
        mean = _finite(float(summed) / len(data), step, budget)
        yield EpochEnd(epoch=epoch + 1, step=step, loss=mean, learning_rate=rate, seconds=time.perf_counter() - started)


def _finite(loss: float, step: int, budget: Budget) -> float:
    if math.isfinite(loss):
        return loss
    raise ClozeError(f"the fine-tuning loss is {loss} at step {step}; lower learning_rate ({budget.learning_rate})")


@torch.inference_mode()
def predict(model: SequenceClassifier, data: Encoded, hardware: Hardware) -> npt.NDArray[np.float32]:
    """The probabilities [n, labels] of every example, in the examples' order. Leaves the model in evaluation mode."""
    model.eval()
    classes = model.classifier.out_features
    probabilities = np.zeros((len(data), classes), dtype=np.float32)
    chosen = evaluation_batches(data.lengths)
    with _batches(model, data, chosen, hardware) as batches:
        for part, batch in zip(chosen, batches, strict=True):
            with hardware():
                logits = model(move(batch, hardware.device))
            probabilities[part] = logits.softmax(dim=-1).cpu().numpy()
    return probabilities


def _batches(model: nn.Module, data: Encoded, chosen: Iterable[Ints], hardware: Hardware) -> Prefetch[Batch]:
    layout = layout_for([model], hardware.device, DTYPES[hardware.precision])
    return prefetched((collate(data, part, layout) for part in chosen), hardware.device)
