"""Whole runs of the trainer in one process: what it writes, what it refuses, and what must not
change its result.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.artifacts import artifact, checkpoint_files
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.model import checkpoint
from cloze.model.families.models import load_model
from cloze.model.tensors import read_tensors, write_tensors
from cloze.model.train.evaluate import scoring as scoring_module
from cloze.model.train.evaluate.heldout import evaluate
from cloze.model.train.resume import saving
from cloze.model.train.stage import STAGE
from tests.model.datasets import lines, strip_timing, write_dataset
from tests.model.train.ranks import STILL, config, digests, here
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import make, write_vocab


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


def packed_dataset(directory: Path) -> str:
    """Rows of several documents, and some held out."""
    documents = made_documents(40)
    held = [name for name, _ in documents[:6]]
    corpus = write_corpus(directory / "corpus", documents, heldout=held)
    return str(
        make(
            corpus, write_vocab(directory), directory / "packed", recipe="packed", length=32
        ).artifact
    )


def test_a_run_learns_and_leaves_a_finished_artifact(dataset: str, tmp_path: Path) -> None:
    settings = config(steps=60, global_batch=16, learning_rate=1e-2, model=STILL, heldout_rows=100)
    execution = Execution(threads=1, checkpoint_every=20)
    result = execute(
        STAGE, settings, {"dataset": dataset}, str(tmp_path / "run"), execution=execution
    )
    summary = result.as_json()
    assert summary["loss"] < summary["first_loss"] - 0.3
    assert abs(summary["first_loss"] - math.log(128)) < 0.3  # ln V + ln 2
    assert summary["heldout_loss"] < math.log(64)
    assert 2.0 < summary["unigram_entropy"] < summary["unigram_loss"] < math.log(64) + 0.2
    assert summary["heldout_rows"] == 24
    assert summary["steps"] == 60
    assert summary["tokens_per_second"] > 0
    assert (summary["precision"], summary["world_size"]) == ("fp32", 1)
    assert artifact.verify(str(tmp_path / "run")).ok
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000060"]
    loaded = checkpoint.load(str(tmp_path / "run"))
    assert loaded.step == 60
    assert loaded.dataset is not None
    assert summary["parameters"] == sum(tensor.numel() for tensor in loaded.state.values())
    load_model(loaded.model, loaded.state)
    steps = [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")]
    assert steps == list(range(1, 61))
    assert execute(STAGE, settings, {"dataset": dataset}, str(tmp_path / "run")).cached


def test_the_last_log_line_scores_the_checkpoint(dataset: str, tmp_path: Path) -> None:
    """The held-out loss that a run reports is that of the weights it leaves."""
    run = here(config(steps=4, heldout_rows=100), dataset, tmp_path / "run", micro_batch=5)
    from cloze.model.data.shards import ShardedRows
    from cloze.model.train.distributed import World
    from cloze.model.train.evaluate.heldout import HeldoutSet

    loaded = checkpoint.load(str(run.checkpoint))
    module = scoring_module.PretrainModule(
        load_model(loaded.model, loaded.state), ("mlm", "nsp"), "fp32"
    )
    heldout = HeldoutSet(
        shards=ShardedRows(dataset, "heldout"), rows=24, batch=7, pad=0, mask=4, longest=32
    )
    found = evaluate(module, heldout, World(0, 1, torch.device("cpu")))
    assert run.outcome is not None
    assert found["heldout_loss"] == pytest.approx(run.outcome.summary["heldout_loss"], abs=2e-6)
    assert found["heldout_nsp_accuracy"] == pytest.approx(
        run.outcome.summary["heldout_nsp_accuracy"]
    )
    assert found["heldout_perplexity"] == pytest.approx(math.exp(found["heldout_loss"]), rel=1e-4)
    with torch.no_grad():
        module.model.get_parameter("masked_lm.bias").fill_(math.nan)
    with pytest.raises(ClozeError, match="heldout_loss is nan"):
        evaluate(module, heldout, World(0, 1, torch.device("cpu")))


def test_looking_does_not_change_training(dataset: str, tmp_path: Path) -> None:
    base = config(steps=6)
    often = here(
        base.model_copy(update={"evaluate_every": 1, "log_every": 1}),
        dataset,
        tmp_path / "often",
        checkpoint_every=1,
    )
    seldom = here(
        base.model_copy(update={"evaluate_every": 100, "log_every": 100}),
        dataset,
        tmp_path / "seldom",
    )
    weights = "model.safetensors", "training/optimizer.safetensors"
    assert [digests(often.checkpoint)[name] for name in weights] == [
        digests(seldom.checkpoint)[name] for name in weights
    ]
    again = here(base.model_copy(update={"seed": 2}), dataset, tmp_path / "again")
    assert (
        digests(again.checkpoint)["model.safetensors"]
        != digests(seldom.checkpoint)["model.safetensors"]
    )


def test_stopping_and_going_on_changes_no_byte(dataset: str, tmp_path: Path) -> None:
    """Weights, optimizer, counters and log lines of 7 steps equal those of 3 and 4, with dropout on
    and an odd log window.
    """
    settings = config(steps=7, global_batch=10, log_every=2, evaluate_every=4)
    straight = here(settings, dataset, tmp_path / "straight", micro_batch=4)
    here(settings, dataset, tmp_path / "halves", stop_at=4, micro_batch=4)
    halves = here(settings, dataset, tmp_path / "halves", micro_batch=4)
    assert "resuming from checkpoints/step-00000004" in halves.said("note")
    assert digests(halves.checkpoint) == digests(straight.checkpoint)
    told = [
        [strip_timing(line) for line in lines(run / "metrics.jsonl")]
        for run in (tmp_path / "straight", tmp_path / "halves")
    ]
    assert told[0] == told[1]
    assert [line["step"] for line in told[0]] == [1, 2, 4, 6, 7]


def test_a_stop_within_an_evaluation_is_made_up_for(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloze.model.train.distributed import StopRequest
    from cloze.model.train.evaluate import heldout as module
    from cloze.model.train.spec.interfaces import EvaluationInterrupted

    settings = config(steps=6, evaluate_every=3)
    straight = here(settings, dataset, tmp_path / "straight")
    calls = []

    def requested_later(
        scoring: Any, heldout: Any, world: Any, stop_requested: Any
    ) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 1:
            raise EvaluationInterrupted
        return evaluate(scoring, heldout, world, stop_requested)

    monkeypatch.setattr(module, "evaluate", requested_later)
    assert StopRequest().requested is False
    with pytest.raises(ClozeError, match="stopped after step 3 of 6"):
        here(settings, dataset, tmp_path / "stopped")
    stopped = here(settings, dataset, tmp_path / "stopped")
    assert digests(stopped.checkpoint) == digests(straight.checkpoint)
    for run in (tmp_path / "straight", tmp_path / "stopped"):
        assert [("heldout_loss" in line) for line in lines(run / "metrics.jsonl")] == [
            False,
            False,
            True,
            False,
            False,
            True,
        ]


def test_an_odd_first_loss_is_said_loudly(dataset: str, tmp_path: Path) -> None:
    run = here(config(steps=1, model={"initializer_range": 2.0}), dataset, tmp_path / "run")
    assert "THE FIRST LOSS IS" in run.said("warning")
    assert "THE FIRST LOSS IS" not in here(config(steps=1), dataset, tmp_path / "other").said(
        "warning"
    )


def test_the_first_loss_of_weighted_objectives_is_no_surprise(dataset: str, tmp_path: Path) -> None:
    """ELECTRA's discriminator weighs fifty times in the gradient, and once in the figures."""
    run = here(
        config(steps=1, model={"family": "electra", "embedding_size": 16, "generator_size": 0.5}),
        dataset,
        tmp_path / "run",
    )
    assert "THE FIRST LOSS IS" not in run.said("warning")


def _broken(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """Make the loss of some optimizer steps (from 0) infinite, on forward passes in training."""
    plain = scoring_module.PretrainModule._loss
    calls = [0]

    def broken(self: Any, batch: Any, counts: Any) -> Any:
        loss, *figures = plain(self, batch, counts)
        if self.training:
            calls[0] += 1
            if calls[0] - 1 in steps:
                loss = loss * torch.tensor(float("nan"))
        return loss, *figures

    monkeypatch.setattr(scoring_module.PretrainModule, "_loss", broken)


def test_a_gradient_that_is_not_finite_is_skipped(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(steps=5, max_skipped=3)
    _broken(monkeypatch, {1, 2})
    run = here(settings, dataset, tmp_path / "run")
    assert run.outcome is not None
    assert run.outcome.summary["skipped_steps"] == 2
    assert run.build.counters == {"steps/skipped": 2, "steps/applied": 3}
    assert all(
        torch.isfinite(tensor).all()
        for tensor in checkpoint.load(str(run.checkpoint)).state.values()
    )
    skipped = lines(tmp_path / "run" / "skipped.jsonl")
    assert [line["step"] for line in skipped] == [2, 3]
    assert all(len(line["rows"]) == 8 for line in skipped)  # type: ignore[arg-type]
    assert "step 2 was skipped" in run.said("warning")
    found = lines(tmp_path / "run" / "metrics.jsonl")
    assert all(math.isfinite(line["loss"]) for line in found if "loss" in line)  # type: ignore[arg-type]
    assert [line["skipped"] for line in found] == [0, 1, 2, 2, 2]


def test_too_many_skips_in_a_row_end_the_run(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(monkeypatch, set(range(2, 100)))
    with pytest.raises(
        ClozeError, match=r"3 steps in a row up to step 5 .*lower learning_rate \(0\.003\)"
    ):
        here(config(steps=50, max_skipped=3), dataset, tmp_path / "run")


def test_clipping_bounds_the_update(dataset: str, tmp_path: Path) -> None:
    """The first moment after one step is (1 - beta1) of the gradient, whose norm is at
    most `grad_clip`.
    """
    norms = {}
    for clip in (0.0, 1e-3):
        run = here(config(steps=1, grad_clip=clip), dataset, tmp_path / str(clip))
        moments = read_tensors(str(run.checkpoint / "training" / "optimizer.safetensors"))
        gradient = torch.cat(
            [
                tensor.flatten() / 0.1
                for name, tensor in moments.items()
                if name.endswith("/exp_avg")
            ]
        )
        norms[clip] = float(gradient.norm())
        logged = lines(tmp_path / str(clip) / "metrics.jsonl")[0]["grad_norm"]
        assert logged == pytest.approx(norms[0.0], rel=1e-4)
    assert norms[0.0] > 0.1
    assert norms[1e-3] == pytest.approx(1e-3, rel=1e-3)


def test_a_dataset_without_pairs_trains_on_masks_alone(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", pair_task=None, heldout=0)
    run = here(config(steps=2), dataset, tmp_path / "run")
    assert run.outcome is not None
    assert run.outcome.summary["heldout_loss"] is None
    assert run.outcome.summary["first_loss"] == pytest.approx(math.log(64), abs=0.3)
    assert "nsp_loss" not in lines(tmp_path / "run" / "metrics.jsonl")[0]


def test_bf16_keeps_fp32_weights(dataset: str, tmp_path: Path) -> None:
    run = here(config(steps=2, precision="bf16"), dataset, tmp_path / "run")
    assert run.outcome is not None
    assert run.outcome.summary["precision"] == "bf16"
    assert run.said("precision") == "bf16"
    state = json.loads((run.checkpoint / "training" / "state.json").read_text())
    assert state["first_loss"] == pytest.approx(math.log(128), abs=0.3)
    assert {tensor.dtype for tensor in checkpoint.load(str(run.checkpoint)).state.values()} == {
        torch.float32
    }


@pytest.mark.parametrize(
    ("values", "execution", "error", "sentence"),
    [
        (
            {"model": {"max_position_embeddings": 31}},
            {},
            UsageError,
            "less than the dataset's length",
        ),
        ({"model": {"vocab_size": 63}}, {}, UsageError, "less than the dataset's vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(
    dataset: str,
    tmp_path: Path,
    values: dict[str, Any],
    execution: dict[str, Any],
    error: type[ClozeError],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        here(config(**values), dataset, tmp_path / "run", **execution)


def test_a_dataset_without_rows_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", rows=0)
    with pytest.raises(DataError, match="has no training rows"):
        here(config(), dataset, tmp_path / "run")


def test_a_damaged_dataset_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    shard = next(Path(dataset).glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=shard.name):
        here(config(), dataset, tmp_path / "run")


def test_a_disk_that_fills_up_leaves_the_older_checkpoint(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = write_tensors, []

    def full(path: str, *rest: Any) -> tuple[str, int]:
        calls.append(path)
        if len(calls) == 4:
            raise OSError(28, "No space left on device", path)
        return write(path, *rest)

    monkeypatch.setattr(saving, "write_tensors", full)
    with pytest.raises(
        ClozeError,
        match=(
            r"step-00000004 could not be written \(No space left on device\); older ones are intact"
        ),
    ):
        here(config(steps=6), dataset, tmp_path / "run", checkpoint_every=2)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
    checkpoint_files.verify(str(tmp_path / "run" / "checkpoints" / "step-00000002"))
