"""A GPU's layers are compiled one by one: few graphs for all batches, the plain step's results.

The flash kernel is the stand-in of `tests.model.flash_on_cpu`, so that this runs without a GPU.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from cloze.model.data.batch import AttentionModes, collate, empty_batch
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.shards import ShardedRows
from cloze.model.families.config import for_dataset
from cloze.model.families.models import new_model
from cloze.model.families.registry import parse_model
from cloze.model.layers import cross_entropy
from cloze.model.layers.batch import Batch
from cloze.model.layers.encoder import EncoderLayer, enable_activation_checkpointing
from cloze.model.objectives import choose
from cloze.model.train import compile_policy
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.optimizers.parameters import freeze_unused
from tests.model import flash_on_cpu as flash_on_cpu
from tests.model.datasets import write_dataset
from tests.model.train.ranks import STILL, TINY
from tests.slices import few

# torch looks at `grad` of every input of a graph.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
ROWS, STEPS = 6, 4
# Kinds of layers: the last one runs at chosen positions; one makes what all share; ELECTRA has two
# networks, ModernBERT layers with and without a window.
GRAPHS = {"packed": {"": 2, "electra": 3, "modern": 6}, "rows": {"": 3, "electra": 5, "modern": 7}}
UNPADDED = ["bert", "roberta", "albert", "modern", "electra", "gpt2"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    path = tmp_path_factory.mktemp("rows")
    return ShardedRows(write_dataset(path / "ragged", pair_task=None, rows=ROWS * STEPS))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def module(rows: ShardedRows, family: str, compiled: bool, **changes: Any) -> PretrainModule:
    values = {**TINY, **STILL, "num_hidden_layers": 4, "family": family, **changes}
    assert rows.info is not None
    model = for_dataset(parse_model(values), rows.info)
    names = choose(model, rows.info, ("mlm",) if family == "albert" else None, None)
    torch.manual_seed(0)
    return PretrainModule(new_model(model), names, "fp32", compiled, "cuda").train()


def batch(rows: ShardedRows, step: int, layout: LayoutKind = "packed") -> Batch:
    assert rows.info is not None
    numbers = np.arange(step * ROWS, (step + 1) * ROWS)
    taken = rows.take(numbers, np.zeros_like(numbers))
    return collate(taken, pad=0, longest=rows.info.length, layout=layout)


def gradient(scoring: PretrainModule, batch: Batch) -> Tensor:
    scoring.zero_grad()
    torch.manual_seed(1)  # of what a generator draws
    counts = torch.tensor([max(1, count) for count in scoring.count_targets(batch)])
    loss, _ = scoring(batch, counts.float())
    loss.backward()  # type: ignore[no-untyped-call]
    parts = [one.grad.flatten() for one in scoring.parameters() if one.grad is not None]
    return torch.cat([*parts, loss.detach().reshape(1)])


def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace forward and backward, and run the graphs without generating code, which takes long."""
    compile_layer = nn.Module.compile
    monkeypatch.setattr(
        nn.Module,
        "compile",
        lambda self, **options: compile_layer(self, backend="aot_eager", **options),
    )
    monkeypatch.setattr(cross_entropy, "_compiled_rows", lambda: cross_entropy._fused_rows)


@pytest.mark.parametrize(
    ("family", "layout"),
    few(
        [
            pytest.param(family, layout, id=f"{family}-{layout}")
            for family in UNPADDED
            for layout in ("packed", "rows")
        ],
        "bert-packed",
        "gpt2-rows",
    ),
)
def test_one_graph_for_each_kind_of_layer(
    rows: ShardedRows, family: str, layout: LayoutKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many tokens, predictions and rows of different length a batch has."""
    eager(monkeypatch)
    plain, compiled = module(rows, family, False), module(rows, family, True)
    batches = [batch(rows, step, layout) for step in range(STEPS)]
    assert (
        len({len(one["masked_positions"]) * int(one["attention_mask"].sum()) for one in batches})
        > 1
    )
    for number, one in enumerate(batches):
        torch.testing.assert_close(
            gradient(compiled, one), gradient(plain, one), rtol=1e-4, atol=1e-6
        )
        if number == 0:
            first = counters["stats"]["unique_graphs"]
    assert not counters["graph_break"]
    assert (
        counters["stats"]["unique_graphs"]
        == first
        <= GRAPHS[layout].get(family, GRAPHS[layout][""])
    )


@pytest.mark.soak
def test_rows_read_left_to_right_beside_whole_ones(
    rows: ShardedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel runs once for each of two kinds of row, however many there are of either."""
    eager(monkeypatch)
    assert rows.info is not None
    model = for_dataset(
        parse_model({**TINY, **STILL, "num_hidden_layers": 3, "family": "modern"}), rows.info
    )
    names, directions = ("clm", "mntp"), AttentionModes(causal_share=2 / 3, before=True)
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        scoring = PretrainModule(new_model(model), names, "fp32", compiled, "cuda").train()
        found.append([])
        for step in range(STEPS):
            numbers = np.arange(step * ROWS, (step + 1) * ROWS)
            taken = rows.take(numbers, np.zeros_like(numbers))
            mixed = collate(
                taken, pad=0, longest=rows.info.length, layout="packed", directions=directions,
                samples=numbers,
            )  # fmt: skip
            found[-1].append(gradient(scoring, mixed))
            if step == 0:
                first = counters["stats"]["unique_graphs"]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == first <= GRAPHS["packed"]["modern"]


@pytest.mark.soak  # half a minute of a C++ compiler
def test_generated_code_computes_the_same(rows: ShardedRows) -> None:
    """Of layers and loss, with inductor; activation checkpointing recomputes compiled layers."""
    plain, compiled = module(rows, "bert", False), module(rows, "bert", True)
    enable_activation_checkpointing(compiled)
    for step in range(2):
        torch.testing.assert_close(
            gradient(compiled, batch(rows, step)), gradient(plain, batch(rows, step)),
            rtol=1e-4, atol=1e-6,
        )  # fmt: skip


def test_an_evaluation_compiles_nothing(rows: ShardedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    plain, compiled = module(rows, "bert", False).eval(), module(rows, "bert", True).eval()
    one = {**batch(rows, 0), "mask_id": torch.tensor(4)}
    with torch.no_grad():
        torch.testing.assert_close(compiled(one, None)[0], plain(one, None)[0])
    assert not counters["stats"]
    compiled.train().uncompiled(batch(rows, 0), torch.ones(1))  # a trial of the micro-batch
    assert not counters["stats"]
    # On a CPU, before the training: it took longer than all else.
    freeze_unused(compiled, {**empty_batch(pad=0), "mask_id": torch.tensor(-1)})
    assert not counters["stats"]


def test_layers_that_cannot_be_compiled_run_plain(
    rows: ShardedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is told, whatever the compiler does: it fails, or it never ends."""
    device = torch.device("cpu")

    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler\nas the stack says")

    def hangs(graph: Any, inputs: Any) -> Any:
        time.sleep(60)
        return graph.forward

    wanted = gradient(module(rows, "bert", False), batch(rows, 0))
    threads = threading.active_count()
    for backend, seconds, reason in (
        (fails, 60.0, "no compiler"),
        (hangs, 0.5, "more than 0 s"),
    ):
        torch._dynamo.reset()
        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, "compile", lambda self, **_: None)
            scoring = module(rows, "bert", True)
        for layer in scoring.modules():
            if isinstance(layer, EncoderLayer):
                layer.compile(backend=backend)
        random = torch.get_rng_state()
        failure = compile_policy.first_step_failure(scoring, batch(rows, 0), device, seconds)
        assert reason in failure
        assert "\n" not in failure
        # Nothing is left behind that could train the model later.
        assert threading.active_count() == threads
        assert all(parameter.grad is None for parameter in scoring.parameters())
        assert torch.equal(torch.get_rng_state(), random)
        scoring.set_compiled(False)
        assert not any(layer._compiled_call_impl for layer in scoring.modules())
        torch.testing.assert_close(gradient(scoring, batch(rows, 0)), wanted)


def test_a_time_limit_gives_back_the_timer_of_another(rows: ShardedRows) -> None:
    """pytest's own limit is such a timer; a run's may be, too."""
    raised: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: raised.append(number))
    outer = signal.setitimer(signal.ITIMER_REAL, 500.0)
    try:
        scoring = module(rows, "bert", False)
        assert not compile_policy.first_step_failure(scoring, batch(rows, 0), torch.device("cpu"))
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500.0
        signal.raise_signal(signal.SIGALRM)
        assert raised
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)
        signal.signal(signal.SIGALRM, handler)


def test_the_first_step_leaves_no_trace(rows: ShardedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    scoring = module(rows, "bert", True)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert not compile_policy.first_step_failure(scoring, batch(rows, 0), torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(one.grad is None for one in scoring.parameters())
    graphs = counters["stats"]["unique_graphs"]
    gradient(scoring, batch(rows, 1))
    assert counters["stats"]["unique_graphs"] == graphs
