"""Real ranks over gloo: the same training however it is spread, at every ZeRO stage, and resumed on
other numbers of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from cloze.core.stages.worker import Job
from cloze.model import checkpoint
from cloze.model.tensors import LazyTensors
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STAGES, STILL, asked, config, digests, here, job, run_all
from tests.slices import few

SPLIT = config(steps=2, grad_clip=100.0, model=STILL)
UNEVEN = config(steps=2, global_batch=5, grad_clip=100.0, model=STILL)
ODD = config(steps=5, log_every=3, evaluate_every=5)  # dropout on
EXACT = ("zero2", "zero3", "fsdp2", "fsdp3")
CHANGES = (
    *(f"odd-{stage}" for stage in EXACT),
    "two-then-one",
    "one-then-two",
    "fsdp-then-one",
    "one-then-fsdp",
    "fsdp-then-zero",
    "zero-then-fsdp",
)


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
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    wanted = asked(request, "name")
    wanted |= {name.replace("halves", "odd") for name in wanted}
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
    for name in wanted & {"one-then-two", "one-then-fsdp"}:
        here(ODD, dataset, root / name, micro_batch=2, stop_at=3)
    spread = [
        job(settings, data, root / f"{before}{stage}", micro_batch=size, **execution)
        for settings, data, before, size in (
            (SPLIT, dataset, "", 2),
            (SPLIT, single, "single-", 2),
            (UNEVEN, dataset, "uneven-", 1),
        )
        for stage, execution in STAGES.items()
    ]
    odd, stopped = (
        [
            job(ODD, dataset, root / f"{name}-{stage}", micro_batch=2, **STAGES[stage])
            for stage in EXACT
        ]
        for name in ("odd", "halves")
    )

    def odd_job(name: str, stage: str) -> Job:
        return job(ODD, dataset, root / name, micro_batch=2, **STAGES[stage])

    onward = [odd_job("two-then-one", "zero1"), odd_job("fsdp-then-one", "fsdp3")]
    changing = [odd_job("fsdp-then-zero", "fsdp3"), odd_job("zero-then-fsdp", "zero2")]
    changed = [odd_job("fsdp-then-zero", "zero3"), odd_job("zero-then-fsdp", "fsdp2")]
    resumed = [odd_job("one-then-two", "zero3"), odd_job("one-then-fsdp", "fsdp3")]
    first = [*spread, *odd]
    halves = [*stopped, *onward, *changing]
    last = [*stopped, *changed, *resumed]
    stops = [*[None] * len(first), *[3] * len(halves), *[None] * len(last)]
    chosen = [
        (work, stop)
        for work, stop in zip([*first, *halves, *last], stops, strict=True)
        if Path(work.path).name in wanted
    ]
    run_all([work for work, _ in chosen], 2, [stop for _, stop in chosen])
    for name in wanted & {"two-then-one", "fsdp-then-one"}:
        here(ODD, dataset, root / name, micro_batch=2)
    return found


@pytest.mark.parametrize("name", few(["four", *STAGES], "zero2", "fsdp3"))
def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(runs: Runs, name: str) -> None:
    torch.testing.assert_close(runs.gradient(name), runs.gradient("whole"), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(runs.weights(name), runs.weights("whole"), rtol=0, atol=1e-5)
    for ours, theirs in zip(runs.losses(name), runs.losses("whole"), strict=True):
        assert ours == pytest.approx(theirs, abs=3e-6)


@pytest.mark.parametrize(
    "name",
    few([f"uneven-{stage}" for stage in STAGES], "uneven-zero0", "uneven-zero3"),
)
def test_ranks_without_rows_take_part(runs: Runs, name: str) -> None:
    """Five rows on two ranks, one at a time: the first rank runs out before the second."""
    torch.testing.assert_close(runs.gradient(name), runs.gradient("uneven1"), rtol=1e-4, atol=1e-6)
    assert runs.losses(name)[-1] == pytest.approx(runs.losses("uneven1")[-1], abs=3e-6)


@pytest.mark.parametrize(
    "name",
    few([f"single-{stage}" for stage in STAGES], "single-zero3", "single-fsdp3"),
)
def test_what_no_objective_uses_stays_as_it_was(runs: Runs, name: str) -> None:
    torch.testing.assert_close(runs.weights(name), runs.weights("single1"), rtol=0, atol=1e-5)
    spread, alone = (checkpoint.load(str(runs.path(run))).state for run in (name, "single1"))
    assert torch.equal(spread["pair.weight"], alone["pair.weight"])


@pytest.mark.parametrize(
    "name", few([f"halves-{stage}" for stage in EXACT], "halves-zero2", "halves-fsdp3")
)
def test_resuming_on_the_same_ranks_changes_no_byte(runs: Runs, name: str) -> None:
    """Weights, optimizer and counters; dropout is on, and the stop lies inside a log window."""
    assert digests(runs.path(name)) == digests(runs.path(name.replace("halves", "odd")))


@pytest.mark.parametrize(
    "name",
    few(CHANGES, "odd-zero2", "odd-fsdp3", "two-then-one", "one-then-two", "fsdp-then-zero"),
)
def test_ranks_and_engine_may_change_at_any_step(runs: Runs, name: str) -> None:
    """Same order of the data, and dropout by global sample number: to rounding it is the same
    training.
    """
    torch.testing.assert_close(runs.weights(name), runs.weights("odd1"), rtol=0, atol=3e-5)
    for ours, theirs in zip(runs.losses(name), runs.losses("odd1"), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("stage", few(["zero1", "fsdp3"], "fsdp3"))
def test_a_run_that_diverges_ends_on_all_ranks(runs: Runs, stage: str) -> None:
    wild = config(steps=30, learning_rate=1e38, warmup_steps=0, max_skipped=3, grad_clip=0)
    out = runs.root / f"wild-{stage}"
    with pytest.raises(AssertionError, match="3 steps in a row up to step"):
        run_all([job(wild, runs.dataset, out, micro_batch=2, **STAGES[stage])], 2)
