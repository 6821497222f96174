"""Real ranks over gloo: the same training however it is spread, at every ZeRO stage, and resumed on
other numbers of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from cloze.model import checkpoint
from cloze.model.tensors import LazyTensors
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, config, digests, here, job, run_all

SPLIT = config(steps=2, grad_clip=100.0, model=STILL)
UNEVEN = config(steps=2, global_batch=5, grad_clip=100.0, model=STILL)
ODD = config(steps=5, log_every=3, evaluate_every=5)  # dropout on


@dataclass
class Runs:
    """Where the runs of this module are."""

    root: Path
    dataset: str
    single: str  # a dataset without sentence pairs

    def path(self, name: str) -> Path:
        return max((self.root / name / "checkpoints").glob("step-*"))

    def gradient(self, name: str) -> torch.Tensor:
        """The first moments after the last step: a sum of the gradients."""
        state = LazyTensors.open(str(self.path(name) / "training"), "optimizer.safetensors")
        return torch.cat(
            [state[key].flatten() for key in sorted(state) if key.endswith("/exp_avg")]
        )

    def weights(self, name: str) -> torch.Tensor:
        state = checkpoint.weights(str(self.path(name)))
        return torch.cat([state[key].flatten() for key in sorted(state)])

    def losses(self, name: str) -> list[object]:
        return [
            [line[key] for key in ("loss", "grad_norm", "tokens")]
            for line in lines(self.root / name / "metrics.jsonl")
        ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("runs")
    dataset = write_dataset(
        root / "dataset", vocab_size=67
    )  # odd sizes, so that ZeRO has to pad its partitions
    single = write_dataset(root / "single", vocab_size=67, pair_task=None)
    found = Runs(root, dataset, single)
    here(SPLIT, dataset, root / "whole", micro_batch=8)
    here(SPLIT, dataset, root / "four", micro_batch=2)
    here(UNEVEN, dataset, root / "uneven1", micro_batch=5)
    here(SPLIT, single, root / "single1", micro_batch=8)
    here(ODD, dataset, root / "odd1", micro_batch=2)
    here(ODD, dataset, root / "one-then-two", micro_batch=2, stop_at=3)
    spread = [
        job(SPLIT, dataset, root / f"zero{zero}", micro_batch=2, zero=zero) for zero in range(4)
    ]
    spread += [
        job(SPLIT, single, root / f"single-zero{zero}", micro_batch=2, zero=zero)
        for zero in range(4)
    ]
    spread += [
        job(UNEVEN, dataset, root / f"uneven-zero{zero}", micro_batch=1, zero=zero)
        for zero in (0, 1, 2, 3)
    ]
    odd = [job(ODD, dataset, root / f"odd{zero}", micro_batch=2, zero=zero) for zero in (2, 3)]
    stopped = [
        job(ODD, dataset, root / f"halves{zero}", micro_batch=2, zero=zero) for zero in (2, 3)
    ]
    onward = [job(ODD, dataset, root / "two-then-one", micro_batch=2, zero=1)]
    resumed = [job(ODD, dataset, root / "one-then-two", micro_batch=2, zero=3)]
    jobs = [*spread, *odd, *stopped, *onward, *stopped, *resumed]
    stops = [None] * (len(spread) + len(odd)) + [3] * 3 + [None] * 3
    run_all(jobs, 2, stops)
    here(ODD, dataset, root / "two-then-one", micro_batch=2)
    return found


@pytest.mark.parametrize("name", ["four", "zero0", "zero1", "zero2", "zero3"])
def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(runs: Runs, name: str) -> None:
    torch.testing.assert_close(runs.gradient(name), runs.gradient("whole"), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(runs.weights(name), runs.weights("whole"), rtol=0, atol=1e-5)
    for ours, theirs in zip(runs.losses(name), runs.losses("whole"), strict=True):
        assert ours == pytest.approx(theirs, abs=3e-6)


@pytest.mark.parametrize("zero", range(4))
def test_ranks_without_rows_take_part(runs: Runs, zero: int) -> None:
    """Five rows on two ranks, one at a time: the first rank runs out before the second."""
    torch.testing.assert_close(
        runs.gradient(f"uneven-zero{zero}"), runs.gradient("uneven1"), rtol=1e-4, atol=1e-6
    )
    assert runs.losses(f"uneven-zero{zero}")[-1] == pytest.approx(
        runs.losses("uneven1")[-1], abs=3e-6
    )


@pytest.mark.parametrize("zero", range(4))
def test_what_no_objective_uses_stays_as_it_was(runs: Runs, zero: int) -> None:
    torch.testing.assert_close(
        runs.weights(f"single-zero{zero}"), runs.weights("single1"), rtol=0, atol=1e-5
    )
    spread, alone = (
        checkpoint.load(str(runs.path(name))).state for name in (f"single-zero{zero}", "single1")
    )
    assert torch.equal(spread["pair.weight"], alone["pair.weight"])


@pytest.mark.parametrize("zero", [2, 3])
def test_resuming_on_the_same_ranks_changes_no_byte(runs: Runs, zero: int) -> None:
    """Weights, optimizer and counters; dropout is on, and the stop lies inside a log window."""
    assert digests(runs.path(f"halves{zero}")) == digests(runs.path(f"odd{zero}"))


@pytest.mark.parametrize("name", ["odd2", "odd3", "two-then-one", "one-then-two"])
def test_the_number_of_ranks_may_change_at_any_step(runs: Runs, name: str) -> None:
    """Same order of the data, and dropout by global sample number: to rounding it is the same
    training.
    """
    torch.testing.assert_close(runs.weights(name), runs.weights("odd1"), rtol=0, atol=3e-5)
    for ours, theirs in zip(runs.losses(name), runs.losses("odd1"), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_a_run_that_diverges_ends_on_all_ranks(runs: Runs) -> None:
    wild = config(steps=30, learning_rate=1e38, warmup_steps=0, max_skipped=3, grad_clip=0)
    with pytest.raises(AssertionError, match="3 steps in a row up to step"):
        run_all([job(wild, runs.dataset, runs.root / "wild", micro_batch=2, zero=1)], 2)
