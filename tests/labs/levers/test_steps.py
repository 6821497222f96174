"""Each GPU lever computes the plain step's losses and weights: on the CPU, with the stand-in of the
flash kernel (`tests.model.flash_on_cpu`), in bf16.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cloze.core import plugins
from cloze.core.stages.execution import GPU_LEVERS
from cloze.labs.levers import half_weights, rows
from cloze.labs.levers.graphs import StepGraphs
from cloze.labs.levers.plugin import PLUGIN
from cloze.labs.levers.tied_table import COPY, TiedTable, tied_loss
from cloze.model.data.batch import collate, empty_batch
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.shards import ShardedRows
from cloze.model.families.config import for_dataset
from cloze.model.families.models import new_model
from cloze.model.families.registry import parse_model
from cloze.model.layers import cross_entropy, layout
from cloze.model.layers.batch import Batch
from cloze.model.objectives import choose
from cloze.model.train.distributed import World
from cloze.model.train.engines.create import create_engine
from cloze.model.train.engines.torch import TorchEngine
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.optimizers.parameters import freeze_unused
from cloze.model.train.setup import hyperparameters, step_duration
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.levers import Lever, LeverContext
from tests.model import flash_on_cpu as flash_on_cpu
from tests.model.datasets import write_dataset
from tests.model.layers.test_device_questions import NoQuestions
from tests.model.layouts import varlen_on_cpu
from tests.model.train.ranks import STILL, TINY, config

CPU = torch.device("cpu")
CONTEXT = LeverContext(
    device=CPU, engine="torch", processes=1, precision="bf16", optimizer="adamw", layout="packed"
)
PARTS, STEPS, ROWS = 2, 6, 6
ALL = ("shapes", "graphs", "clip", "weights", "table")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    path = tmp_path_factory.mktemp("rows")
    return ShardedRows(write_dataset(path / "ragged", pair_task=None, rows=ROWS * PARTS * STEPS))


@pytest.fixture(autouse=True)
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits in chunks of a few rows, with columns behind the vocabulary, as on a GPU."""
    monkeypatch.setattr(cross_entropy, "chunks_logits", lambda *_: True)
    monkeypatch.setattr(cross_entropy, "logit_chunk_rows", lambda *_: 5)
    monkeypatch.setattr(cross_entropy, "filler_columns", lambda vocabulary, _: -vocabulary % 16)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Tensor]]:
    """The functions that became graphs; as a GPU does, a capture runs nothing."""
    found: list[Callable[[], Tensor]] = []

    def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        found.append(run)
        return run

    monkeypatch.setattr(rows, "capture_on_gpu", lambda: capture)
    return found


def engine(
    dataset: ShardedRows, family: str, levers: tuple[Lever, ...], **changes: Any
) -> TorchEngine:
    assert dataset.info is not None
    model = for_dataset(parse_model({**TINY, **STILL, "family": family}), dataset.info)
    names = choose(model, dataset.info, ("mlm",) if family == "albert" else None, None)
    torch.manual_seed(0)
    scoring = PretrainModule(new_model(model), names, "bf16").train()
    freeze_unused(scoring, {**empty_batch(pad=0), "mask_id": torch.tensor(-1)})
    for lever in levers:
        lever.prepare(scoring.model, CONTEXT, False)
    settings = config(precision="bf16", **changes)
    plan = hyperparameters(settings, "bf16", step_duration(settings))
    made = create_engine(
        EngineConfig("torch", 0, levers=levers), scoring, plan, World(0, 1, CPU), micro_batch=ROWS,
        accumulation=PARTS,
    )  # fmt: skip
    assert isinstance(made, TorchEngine)
    made._waits = False  # as on a GPU
    return made


def batch(dataset: ShardedRows, number: int, layout: LayoutKind) -> Batch:
    assert dataset.info is not None
    numbers = np.arange(number * ROWS, (number + 1) * ROWS)
    taken = dataset.take(numbers, np.zeros_like(numbers))
    fixed = dataset.most_predictions() if layout == "fixed" else None
    return collate(
        taken, pad=0, longest=dataset.info.length, layout=layout, fixed_predictions=fixed
    )


def train(
    made: TorchEngine, dataset: ShardedRows, layout: LayoutKind, steps: int = STEPS
) -> list[Tensor]:
    """Figures of each micro-batch and norms of each step."""
    found = []
    for step in range(steps):
        for part in range(PARTS):
            torch.manual_seed(step * PARTS + part)  # of what a generator draws
            one = batch(dataset, step * PARTS + part, layout)
            counts = torch.full((len(made._trained.names),), 20.0)
            found.append(made.backward(one, counts, last=part + 1 == PARTS)[0].clone())
        found.append(torch.as_tensor(made.step(1e-3)).reshape(1).double())
    return found


def compared(
    dataset: ShardedRows, names: tuple[str, ...], family: str, **changes: Any
) -> tuple[TorchEngine, TorchEngine]:
    """Train with and without levers, and compare; return both engines."""
    levers = tuple(GPU_LEVERS[name] for name in names)
    layout: LayoutKind = "fixed" if any(lever.fixed_sizes for lever in levers) else "packed"
    plain = engine(dataset, family, (), **changes)
    pulled = engine(dataset, family, levers, **changes)
    expected, found = train(plain, dataset, "packed"), train(pulled, dataset, layout)
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), rtol=5e-3, atol=5e-3)
    weights = dict(plain._model.state_dict())
    assert weights.keys() == pulled._model.state_dict().keys()
    start = engine(dataset, family, ())._model.state_dict()
    found_weights = pulled._model.state_dict()
    moved = sum(float((weights[name] - start[name]).float().square().sum()) for name in weights)
    apart = sum(float((weights[name] - found_weights[name]).square().sum()) for name in weights)
    # In bf16, Adam moves a weight whose gradient is all rounding by the rate, either way.
    assert apart <= 0.1**2 * moved
    return plain, pulled


@pytest.mark.parametrize("family", ["bert", "modern", "albert", "electra", "deberta"])
@pytest.mark.parametrize("name", ["clip", "weights", "table"])
def test_a_lever_changes_rounding_alone(dataset: ShardedRows, name: str, family: str) -> None:
    compared(dataset, (name,), family, grad_clip=0.5)


@pytest.mark.parametrize("family", ["bert", "modern"])
def test_all_levers_together(
    dataset: ShardedRows, family: str, captured: list[Callable[[], Tensor]]
) -> None:
    _, pulled = compared(dataset, ALL, family)
    assert captured
    assert pulled.graphs is not None


def test_a_graph_for_each_shape_that_comes_twice(
    dataset: ShardedRows, captured: list[Callable[[], Tensor]]
) -> None:
    """Few shapes: eager once, captured once, then replayed; gradients add up as they do plain."""
    _, pulled = compared(dataset, ("graphs",), "bert")
    graphs = pulled.graphs.__self__.graphs  # type: ignore[union-attr]
    assert len(captured) == sum(graph is not None for graph in graphs.values())
    assert 0 < len(captured) <= len(graphs) < PARTS * STEPS


def test_graphs_are_captured_again_when_gradients_have_moved() -> None:
    weight, runs = torch.nn.Parameter(torch.ones(2)), list[str]()

    def run(batch: Batch, counts: Tensor) -> Tensor:
        runs.append("run")
        (weight * batch["input_ids"]).sum().backward()  # type: ignore[no-untyped-call]
        return counts

    def capture(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        runs.append("capture")
        return function

    graphs = StepGraphs([weight], run, capture)
    batches = [torch.full((2,), number) for number in range(6)]
    for number, ids in enumerate(batches):
        if number == 4:
            weight.grad = torch.zeros(2)  # another tensor
        graphs.run({"input_ids": ids}, torch.ones(1))  # type: ignore[typeddict-item]
    # The caller's batches are as they were.
    assert [ids.tolist() for ids in batches] == [[number] * 2 for number in range(6)]
    # The first makes the gradient, so the second is the first batch after it has moved.
    assert [kind for kind in runs if kind == "capture"] == ["capture", "capture"]
    assert weight.grad is not None
    assert weight.grad.tolist() == [9.0, 9.0]


def test_a_gradient_that_is_not_finite_changes_nothing(dataset: ShardedRows) -> None:
    """Neither weights nor their copies; clipping divides by a norm that is not finite."""
    table = GPU_LEVERS
    made = engine(dataset, "bert", (table["clip"], table["weights"], table["table"]))
    train(made, dataset, "packed", 1)
    before = copy.deepcopy(made._model.state_dict())
    counts = torch.ones(len(made._trained.names))
    made.backward(batch(dataset, 2, "packed"), counts, last=True)
    next(iter(made._model.parameters())).grad.view(-1)[0] = torch.inf  # type: ignore[union-attr]
    made.step(1e-3)
    for name, weight in made._model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    train(made, dataset, "packed", 1)  # goes on
    assert any(not torch.equal(made._model.state_dict()[name], before[name]) for name in before)


def test_loaded_weights_reach_the_copies(dataset: ShardedRows) -> None:
    """A resume or a rollback; no checkpoint has the copies."""
    table = GPU_LEVERS
    made = engine(dataset, "bert", (table["weights"], table["table"]))
    other = engine(dataset, "bert", ())
    train(other, dataset, "packed", 2)
    assert dict(made.weights()).keys() == dict(other.weights()).keys()
    made.load_weights(dict(other.weights()))
    pairs = list(half_weights.copies(made._model))
    assert len(pairs) > TINY["num_hidden_layers"] * 6
    for half, weight in pairs:
        assert torch.equal(half, weight.bfloat16())
    torch.testing.assert_close(
        torch.cat(train(made, dataset, "packed", 1)[:PARTS]),
        torch.cat(train(other, dataset, "packed", 1)[:PARTS]),
        rtol=1e-3, atol=1e-3,
    )  # fmt: skip


def test_the_table_has_one_gradient(dataset: ShardedRows) -> None:
    """Lookup and loss add to the same tensor; the filler behind the vocabulary adds nothing."""
    made = engine(dataset, "bert", (GPU_LEVERS["table"],))
    word = made._model.get_submodule("encoder.embeddings.word")
    assert isinstance(word, TiedTable)
    made.backward(batch(dataset, 0, "packed"), torch.ones(1), last=False)
    first = word.weight.grad
    assert first is not None
    before = first.clone()
    made.backward(batch(dataset, 0, "packed"), torch.ones(1), last=True)
    assert word.weight.grad is first
    torch.testing.assert_close(first, 2 * before)
    assert len(getattr(word.weight, COPY)) % 16 == 0
    assert not getattr(word.weight, COPY)[len(word.weight) :].any()


def test_a_step_with_levers_asks_the_device_for_nothing(dataset: ShardedRows) -> None:
    table = GPU_LEVERS
    made = engine(dataset, "bert", tuple(table[name] for name in ("clip", "weights", "table")))
    train(made, dataset, "packed", 1)  # creates the optimizer's state
    one, counts = batch(dataset, 3, "fixed"), torch.ones(len(made._trained.names))
    with pytest.MonkeyPatch.context() as patch:
        # The stand-in of the kernel reads the bounds.
        patch.setattr(layout, "varlen_attention", varlen_on_cpu)
        with NoQuestions():
            made.backward(one, counts, last=True)
            made.step(1e-3)


def test_a_head_with_a_matrix_of_its_own_has_the_usual_loss() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(7, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True)
    labels = torch.randint(20, (7,))
    logits = cross_entropy.LazyLogits(hidden, weight)
    loss, correct = tied_loss(weight, logits, labels)
    expected, right = cross_entropy.summed_cross_entropy(logits, labels)
    assert torch.equal(loss, expected)
    assert int(correct) == int(right)


def test_a_network_without_such_weights_is_told_of_and_trained() -> None:
    """ELMo has neither projections of layers nor a word table."""
    network = torch.nn.LSTM(4, 4)
    attached: Any = SimpleNamespace(after_update=None)
    for name in ("weights", "table"):
        lever = GPU_LEVERS.find(name)
        assert f"{name} changes nothing" in lever.prepare(network, CONTEXT, False)
        lever.attach(attached, network)
        assert attached.after_update is None


def test_every_row_is_a_lever() -> None:
    assert [*GPU_LEVERS] == [*PLUGIN.rows["gpu_levers"]]
    for name in GPU_LEVERS:
        assert isinstance(GPU_LEVERS.find(name), Lever)
    assert not plugins.faults
