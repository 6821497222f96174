"""Packed batches of few sizes: the same tokens, losses and gradients, and little filler."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters

from benchmarks.gpu.place import ragged_length
from cloze.model.data.batch import collate
from cloze.model.data.layouts import Sequences, fixed_size, packed
from cloze.model.data.shards import ShardedRows
from tests.model import flash_on_cpu as flash_on_cpu
from tests.model.datasets import write_dataset
from tests.model.train.test_compiled_layers import ROWS, STEPS, eager, gradient, module

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    path = tmp_path_factory.mktemp("rows")
    return ShardedRows(write_dataset(path / "ragged", pair_task=None, rows=ROWS * STEPS))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=40), st.integers(0, 16))
def test_filler_is_in_sequences_of_its_own(lengths: list[int], more: int) -> None:
    length = max(lengths) + more
    sequences = Sequences.alone(np.array(lengths), length)
    plain, fixed = packed(sequences), packed(sequences, fixed=True)
    tokens, count = len(plain.flat_positions), len(lengths)
    assert len(fixed.flat_positions) == fixed_size(tokens)
    assert torch.equal(fixed.flat_positions[:tokens], plain.flat_positions)
    assert torch.equal(fixed.positions[:tokens], plain.positions)
    assert torch.equal(fixed.bounds[: count + 1], plain.bounds)
    assert torch.equal(fixed.slots, plain.slots)
    assert fixed.real is not None
    assert fixed.real.tolist() == [True] * tokens + [False] * (fixed_size(tokens) - tokens)
    # Each token is in one sequence, none is longer than a row, and the number is a power of two.
    steps = fixed.bounds.diff()
    assert int(fixed.bounds[-1]) == fixed_size(tokens)
    assert 0 <= int(steps.min()) <= int(steps.max()) <= fixed.max_distance == length
    assert (len(steps) & (len(steps) - 1)) == 0 < count < len(steps)
    assert int(fixed.positions.max()) < length


@given(st.integers(1, 1 << 20))
def test_sizes_are_few_and_near(count: int) -> None:
    size = fixed_size(count)
    assert count <= size <= 1.018 * count + 8
    assert fixed_size(max(1, count - 1)) <= size


@pytest.mark.parametrize(
    ("length", "batch", "most"), [(512, 64, 22), (512, 256, 11), (128, 256, 11), (128, 1024, 7)]
)
def test_a_hundred_batches_have_few_sizes_and_little_filler(
    length: int, batch: int, most: int
) -> None:
    """Lengths as of an encyclopedia's paragraphs, whose spread is that of real rows."""
    rng = np.random.default_rng(1)
    tokens = [sum(ragged_length(rng, length) for _ in range(batch)) for _ in range(100)]
    sizes = [fixed_size(count) for count in tokens]
    assert sum(sizes) / sum(tokens) <= 1.01
    assert len(set(sizes)) <= most


def test_predictions_follow_from_the_tokens(rows: ShardedRows) -> None:
    """So that tokens and predictions have not twice as many pairs of sizes; no label is lost."""
    assert rows.info is not None
    found: dict[int, set[int]] = {}
    for step in range(STEPS):
        numbers = np.arange(step * ROWS, (step + 1) * ROWS)
        taken = rows.take(numbers, np.zeros_like(numbers))
        one = collate(
            taken, pad=0, longest=rows.info.length, layout="fixed",
            fixed_predictions=rows.most_predictions(),
        )  # fmt: skip
        plain = collate(taken, pad=0, longest=rows.info.length, layout="packed")
        real = one["masked_labels"] != -100
        assert one["masked_labels"][real].tolist() == [
            label for label in plain["masked_labels"].tolist() if label != -100
        ]
        tokens = len(one["layout"].flat_positions)  # type: ignore[attr-defined]
        found.setdefault(tokens, set()).add(len(real))
    assert all(len(sizes) == 1 for sizes in found.values())


@pytest.mark.parametrize("family", ["bert", "modern", "electra"])
def test_losses_and_gradients_are_those_of_packed_batches(rows: ShardedRows, family: str) -> None:
    assert rows.info is not None
    scoring = module(rows, family, False)
    for step in range(STEPS):
        numbers = np.arange(step * ROWS, (step + 1) * ROWS)
        taken = rows.take(numbers, np.zeros_like(numbers))
        plain = collate(taken, pad=0, longest=rows.info.length, layout="packed")
        fixed = collate(
            taken, pad=0, longest=rows.info.length, layout="fixed",
            fixed_predictions=rows.most_predictions(),
        )  # fmt: skip
        if family == "electra":  # whose generator draws by the number of predictions
            for name in ("masked_positions", "masked_labels"):
                fixed[name] = plain[name]
        torch.testing.assert_close(
            gradient(scoring, fixed), gradient(scoring, plain), rtol=1e-4, atol=1e-6
        )


def test_static_graphs_are_as_many_as_sizes(
    rows: ShardedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of layer has one for each size; the same sizes again compile nothing."""
    eager(monkeypatch)
    assert rows.info is not None
    plain, compiled = module(rows, "bert", False), module(rows, "bert", False)
    compiled.set_compiled(True, dynamic=False)
    sizes, counts = set(), []
    for step in [*range(STEPS), *range(STEPS)]:
        numbers = np.arange(step * ROWS, (step + 1) * ROWS)
        taken = rows.take(numbers, np.zeros_like(numbers))
        one = collate(
            taken, pad=0, longest=rows.info.length, layout="fixed",
            fixed_predictions=rows.most_predictions(),
        )  # fmt: skip
        torch.testing.assert_close(
            gradient(compiled, one), gradient(plain, one), rtol=1e-4, atol=1e-6
        )
        sizes.add((len(one["layout"].flat_positions), len(one["masked_labels"])))  # type: ignore[attr-defined]
        counts.append(counters["stats"]["unique_graphs"])
    assert not counters["graph_break"]
    assert counts[STEPS - 1] == counts[-1] == 2 * len(sizes)  # the last layer is another kind


def test_a_whole_step_is_one_graph_for_all_sizes(
    rows: ShardedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows.info is not None
    compile_function = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compile_function(
            function, backend="aot_eager", **options
        )
    )  # fmt: skip
    plain, compiled = module(rows, "bert", False), module(rows, "bert", False)
    compiled.set_compiled(True, whole=True)
    first = 0
    for step in range(STEPS):
        numbers = np.arange(step * ROWS, (step + 1) * ROWS)
        taken = rows.take(numbers, np.zeros_like(numbers))
        one = collate(taken, pad=0, longest=rows.info.length, layout="packed")
        torch.testing.assert_close(
            gradient(compiled, one), gradient(plain, one), rtol=1e-4, atol=1e-6
        )
        first = first or counters["stats"]["unique_graphs"]
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == first == 1
