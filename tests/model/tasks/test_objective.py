"""A task's loss is that of the whole batch however it is cut, and its score that of the whole split
on any number of ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cloze.model.families.config import ModelConfig
from cloze.model.tasks.encode import TextSamples
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.predict import FEW, DevEvaluator
from cloze.model.tasks.source import EpochSource, TaskObjective
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import Split
from cloze.model.train.distributed import World
from cloze.model.train.spec.interfaces import EvaluationInterrupted
from cloze.model.train.spec.schedules import ScheduleProgress
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

ALONE = World(rank=0, size=1, device=torch.device("cpu"))
MOMENT = ScheduleProgress(done=0, step_size=1, total=100, last=False)
MEANING = {"labels": ["0", "1"]}
TEXTS = [f"{'good ' * (n % 7)}film {'the plot is bad ' * (n % 3)}" for n in range(21)]


def split(pieces: Tokenizer, count: int = 21) -> Split:
    examples = LabelledTexts(
        texts=TEXTS[:count], labels=[n % 2 for n in range(count)], label_names=("0", "1")
    )
    return Split(examples=examples, samples=load_task("sst2").encode(examples, pieces, 32))


def objective(shape: ModelConfig) -> TaskObjective:
    task = load_task("sst2")
    still = shape.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    return TaskObjective(
        task, new_network(task, still, None, MEANING, None, seed=1), "fp32", ALONE.device
    )


def gradient(
    trained: TaskObjective, batches: list[dict[str, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of all parameters, and the summed figures."""
    trained.zero_grad()
    counts = torch.tensor([max(1.0, sum(trained.count_targets(batch)[0] for batch in batches))])
    figures = torch.zeros(2, 1, dtype=torch.float64)
    for batch in batches:
        loss, found = trained(batch, counts)
        loss.backward()
        figures += found
    grads = [
        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
        for p in trained.parameters()
    ]
    return torch.cat(grads), figures


def test_gradients_add_up_to_those_of_the_whole_batch_and_blanks_add_nothing(
    pieces: Tokenizer, shape: ModelConfig
) -> None:
    trained, samples = objective(shape), split(pieces).samples
    whole, figures = gradient(trained, [samples.batch(np.arange(21))])
    blank = EpochSource(samples, batch_size=4, seed=1, micro_batch=4).blank()
    assert trained.count_targets(blank) == [0]
    cut = [
        samples.batch(np.arange(0, 9)),
        blank,
        samples.batch(np.arange(9, 20)),
        samples.batch(np.array([20])),
    ]
    parts, summed = gradient(trained, cut)
    assert whole.norm() > 0.01
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(summed, figures)
    assert not gradient(trained, [blank])[0].any()


def test_weights_of_classes_weigh_each_example_however_a_batch_is_cut(
    pieces: Tokenizer, shape: ModelConfig
) -> None:
    task = load_task("sst2")
    labels = [int(n % 5 == 0) for n in range(21)]
    plain = LabelledTexts(texts=TEXTS, labels=labels, label_names=("0", "1"))
    weighted = task.balance_classes(plain)
    trained, samples = (
        objective(shape),
        task.encode(task.align_labels(weighted, MEANING), pieces, 32),
    )
    whole, figures = gradient(trained, [samples.batch(np.arange(21))])
    parts, summed = gradient(
        trained, [samples.batch(np.arange(0, 5)), samples.batch(np.arange(5, 21))]
    )
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(summed, figures)
    unweighted = task.encode(plain, pieces, 32)
    each = [gradient(trained, [unweighted.batch(np.array([n]))])[0] for n in range(21)]
    expected = (
        sum(weight * own for weight, own in zip(weighted.weights or (), each, strict=True)) / 21
    )
    torch.testing.assert_close(whole, expected, atol=1e-6, rtol=1e-4)
    assert not torch.allclose(
        gradient(trained, [unweighted.batch(np.arange(21))])[0], whole, rtol=1e-2
    )


def test_scores_on_the_way_are_bounded_by_the_data_alone(
    pieces: Tokenizer, shape: ModelConfig
) -> None:
    def every(train: int, dev: int) -> int:
        def lying(count: int) -> Any:
            samples = TextSamples(
                sequences=(np.zeros(1, np.int32),) * count,
                second=np.ones(count),
                truncated=0,
                pad=0,
            )
            return Split(examples=split(pieces).examples, samples=samples)

        measure = DevEvaluator(objective(shape), lying(train), lying(dev), ALONE, epoch=10)
        return next(step for step in range(1, 10_000) if measure.should_evaluate(step, MOMENT))

    assert every(100, FEW) == 10  # a small split is scored after each epoch
    assert every(15 * 2000, 2000) == 10
    assert every(2000, 2000) == 70  # a third of a training example's time, over 5 %


def test_a_measurement_leaves_no_trace_and_is_kept_for_the_end(
    pieces: Tokenizer, shape: ModelConfig
) -> None:
    trained = objective(shape).train()
    dev = split(pieces)
    measure = DevEvaluator(trained, dev, dev, ALONE, epoch=3)
    torch.manual_seed(3)
    random = torch.get_rng_state()
    found = measure(3, MOMENT, lambda: False)
    assert trained.training
    assert torch.equal(torch.get_rng_state(), random)
    kept = measure.predictions(3)
    assert found == {"dev_accuracy": np.mean(kept.argmax(1) == np.arange(21) % 2)}
    assert measure.predictions(3) is kept
    with torch.no_grad():
        trained.model.classifier.bias += torch.tensor([9.0, 0.0])
    assert (measure.predictions(4).argmax(1) == 0).all()


def test_a_stop_breaks_a_measurement_off(pieces: Tokenizer, shape: ModelConfig) -> None:
    trained = objective(shape).train()
    with pytest.raises(EvaluationInterrupted):
        DevEvaluator(trained, split(pieces), split(pieces), ALONE, epoch=3)(3, MOMENT, lambda: True)
    assert trained.training
