"""A run is compiled where that pays, and as it was asked for where it was."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import UsageError
from cloze.model.data.batch import AttentionModes, collate
from cloze.model.data.layouts import WORTH
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import ShardedRows
from cloze.model.families.models import new_model
from cloze.model.families.registry import config_class, model_config, parse_model
from cloze.model.objectives import choose
from cloze.model.train import compile_policy
from cloze.model.train.compile_policy import (
    MEASURES,
    PAYS,
    CompileDecision,
    StepTimes,
    WorkEstimate,
    compare,
    decide,
    decide_on_gpu,
    fill_ratio,
    given_decision,
)
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.plan import micro_batch
from cloze.model.train.plan.estimates import StepCost
from tests.model.datasets import write_dataset
from tests.model.train.ranks import STILL, TINY, Here, config, digests, here
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import make, write_vocab
from tests.tiny_models import TRANSFORMERS

CPU = torch.device("cpu")
GAIN = StepTimes(plain=1.0, compiled=0.8, compiling=30.0)
LOSS = StepTimes(plain=1.0, compiled=1.1, compiling=30.0)
MODEL = model_config("bert-mini", vocab_size=1000)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    return ShardedRows(write_dataset(tmp_path_factory.mktemp("rows") / "full", full=True))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    path = tmp_path_factory.mktemp("packed")
    corpus, vocab = write_corpus(path / "corpus", made_documents(40)), write_vocab(path)
    return ShardedRows(make(corpus, vocab, path / "packed", recipe="packed", length=32).artifact)


def given(
    rows: ShardedRows, wanted: bool | None = None, recorded: bool | None = None, **changes: Any
) -> bool | None:
    """The decision before any time is looked at; None: there is none."""
    values: dict[str, Any] = {"model": "bert-mini", "device": CPU, "gathers": False, **changes}
    model = model_config(values.pop("model"), vocab_size=1000)
    decision = given_decision(wanted, recorded, model, rows, **values)
    return None if decision is None else decision.compiled


def timed(times: StepTimes | None, **work: Any) -> CompileDecision:
    """The decision by time, of which nothing may be measured unless `times` are what is found."""

    def measure() -> StepTimes:
        assert times is not None
        return times

    estimate = WorkEstimate(positions=4096, **work)
    return decide(estimate, MODEL, "bf16", World(0, 1, CPU), measure)


@pytest.mark.parametrize("times", [GAIN, LOSS])
def test_saved_seconds_must_exceed_the_compile_time(times: StepTimes) -> None:
    """By steps and by seconds; what compiling saves grows with the training."""
    gain = 1.0 - times.compiled / times.plain
    for total in (10.0, 100.0, 180.0, 190.0, 1e3, 1e6):
        wanted = gain * total > PAYS * times.compiling
        by_steps = compare(WorkEstimate(micro_batches=total / times.plain, positions=1), times)
        by_seconds = compare(WorkEstimate(seconds=total, positions=1), times)
        assert by_steps.compiled == by_seconds.compiled == wanted
        assert "measured on this machine" in by_steps.reason
    assert wanted == (times is GAIN)


def test_a_long_training_measures_and_a_shorter_one_does_not() -> None:
    long = MEASURES * compile_policy.compiling_seconds(MODEL)
    assert timed(None, seconds=0.99 * long) == CompileDecision(False)
    assert timed(GAIN, seconds=1.01 * long).compiled
    assert timed(None, micro_batches=20) == CompileDecision(False)


def test_tokens_are_shared_out_to_the_ranks_as_steps_are() -> None:
    length, batch, steps = 128, 256, 3000
    for ranks in (1, 8):
        plan = micro_batch.plan(batch, None, StepCost(MODEL, length), World(0, ranks, CPU))
        by_steps, by_tokens = (
            WorkEstimate.of_rank(PretrainConfig(**duration), plan, length, ranks).micro_batches
            for duration in ({"steps": steps}, {"tokens": steps * batch * length})
        )
        assert by_tokens == by_steps


def test_a_machine_that_compiling_slows_trains_plain() -> None:
    assert not timed(LOSS, seconds=1e5).compiled


@pytest.mark.skipif(shutil.which("g++") is None, reason="the policy looks for a compiler")
def test_measuring_changes_no_bit_and_a_resume_keeps_the_choice(
    rows: ShardedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_policy, "MEASURES", 0.0)
    # Traced, but without generated code, which takes long and is test_compiling.py's.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    settings = config(steps=4, model={"num_hidden_layers": 1})

    def run(name: str, **options: Any) -> Here:
        return here(settings, rows.path, tmp_path / name, **options)

    def chosen(finished: Here) -> bool:
        assert finished.outcome is not None
        return bool(finished.outcome.summary["compiled"])

    measured = run("measured")  # so short a training does not repay compiling
    assert "not compiled: expected to save" in measured.said("note")
    # it is no estimate of the training, which was more than twice as long
    assert "of forward and backward passes (without updates" in measured.said("note")
    assert not chosen(measured)
    plain = run("plain", compile=False)
    assert digests(measured.checkpoint) == digests(plain.checkpoint)

    faster = StepTimes(plain=1.0, compiled=0.1, compiling=0.0)
    monkeypatch.setattr(compile_policy, "measure_steps", lambda *_: faster)
    whole = run("whole")
    assert chosen(whole)
    run("resumed", stop_at=2)
    monkeypatch.setattr(compile_policy, "measure_steps", lambda *_: LOSS)
    resumed = run("resumed")
    assert chosen(resumed), "whatever the machine has measured since"
    assert digests(resumed.checkpoint) == digests(whole.checkpoint)
    assert not chosen(run("later"))


def test_what_was_asked_for_is_done(rows: ShardedRows) -> None:
    assert given(rows) is None
    assert given(rows, True)
    assert given(rows, False) is False


def test_what_cannot_be_compiled_is_refused_even_if_asked_for(rows: ShardedRows) -> None:
    with pytest.raises(UsageError, match=r"compile \(true\) is not for weights that are gathered"):
        given(rows, True, gathers=True)
    with pytest.raises(
        UsageError, match=r"compile \(true\) is not for models of the family deberta"
    ):
        given(rows, True, model="deberta-v3-tiny")


def test_what_a_checkpoint_records_is_gone_on_with(rows: ShardedRows) -> None:
    assert given(rows, recorded=True)
    assert given(rows, recorded=False) is False
    with pytest.raises(
        UsageError, match=r"compile \(false\) is not how the checkpoint .* was trained \(true\)"
    ):
        given(rows, False, recorded=True)


@pytest.mark.usefixtures("deepspeed_here")
@pytest.mark.filterwarnings("ignore:`torch.distributed")  # of DeepSpeed
def test_a_resume_on_sharded_weights_runs_plain(
    rows: ShardedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the checkpoint records: its step could not be compiled there."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    settings = config(steps=4, model=STILL)
    whole = here(settings, rows.path, tmp_path / "whole", compile=True)
    here(settings, rows.path, tmp_path / "run", stop_at=2, compile=True)
    resumed = here(settings, rows.path, tmp_path / "run", engine="deepspeed", zero=3)
    assert "not compiled: the checkpoint to continue was" in resumed.said("note")
    assert resumed.outcome is not None
    assert not resumed.outcome.summary["compiled"]
    assert whole.outcome is not None
    loss = whole.outcome.summary["loss"]
    assert resumed.outcome.summary["loss"] == pytest.approx(loss, rel=1e-5)
    assert given(rows, False, recorded=True, gathers=True) is False
    with pytest.raises(UsageError, match="gathered between the layers"):
        given(rows, True, recorded=True, gathers=True)


def test_where_compiling_gains_nothing_or_is_not_known_to(
    rows: ShardedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given(rows, gathers=True) is False
    assert given(rows, model="deberta-v3-tiny") is False
    assert given(rows, model="longformer-tiny") is None, (
        "global tokens, whose number differs, are fine-tuning's alone"
    )
    ragged = ShardedRows(
        write_dataset(tmp_path / "ragged")
    )  # rows at least half as long as they may be
    assert fill_ratio(ragged) == pytest.approx(0.75, abs=0.05)
    assert given(ragged) is False
    monkeypatch.setenv("CXX", "no-compiler")
    assert given_decision(None, None, MODEL, rows, CPU, False) == CompileDecision(
        False, "there is no C++ compiler"
    )


def test_a_gpu_compiles_what_takes_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ragged rows too, and with activation checkpointing."""
    ragged = ShardedRows(write_dataset(tmp_path / "ragged"))

    def decided(positions: float, **changes: Any) -> compile_policy.CompileDecision:
        model, gpu = model_config("bert-base"), torch.device("cuda")
        work = WorkEstimate(micro_batches=positions / 1024, positions=1024)
        given = given_decision(None, None, model, ragged, gpu, False, **changes)
        return decide_on_gpu(model, work) if given is None else given

    monkeypatch.setattr(compile_policy, "find_spec", lambda name: None)
    assert "Triton is not installed" in decided(1e11).reason
    monkeypatch.setattr(compile_policy, "find_spec", lambda name: object())
    assert decided(1e11).compiled
    assert decided(1e11, recomputes=True).compiled
    assert decided(1e11, directions=AttentionModes(causal_share=0.5)).compiled
    assert not decided(1e6).compiled
    narrow = model_config("bert-tiny")
    steps = WorkEstimate(micro_batches=5_000, positions=128)
    assert not decide_on_gpu(narrow, steps).compiled
    deep = narrow.model_copy(update={"num_hidden_layers": 12})
    assert decide_on_gpu(deep, steps).compiled, "the host takes as long for narrow layers"


def test_packed_rows_are_compiled_where_they_are_full(packed: ShardedRows) -> None:
    """A row has one length whatever it holds, and many documents are no padding."""
    assert packed.info is not None
    assert packed.info.packed
    numbers = np.arange(len(packed))
    tokens = int(packed.take(numbers, np.zeros_like(numbers)).lengths.sum())
    assert WORTH < fill_ratio(packed) == tokens / (32 * len(packed)) < 1.0
    assert given(packed) is None
    assert given(packed, True)
    with pytest.raises(
        UsageError, match=r"compile \(true\) is not for samples that are read from left to right"
    ):
        given(packed, True, directions=AttentionModes(causal_share=0.5))
    assert given(packed, model="gpt2-tiny") is None, "a decoder's batches have one shape, too"


COMPILED = [family for family in TRANSFORMERS if config_class(family).supports_compile]


@pytest.mark.parametrize(
    "family",
    [
        family if family in ("bert", "gpt2") else pytest.param(family, marks=pytest.mark.soak)
        for family in COMPILED
    ],
)
def test_batches_of_packed_rows_are_one_graph(packed: ShardedRows, family: str) -> None:
    """Though rows hold a number of sequences that differs from batch to batch; losses are the plain
    step's.
    """
    assert packed.info is not None
    model = parse_model({**TINY, **STILL, "family": family, "vocab_size": packed.info.vocab_size})
    names = choose(
        model, packed.info, ("mlm",) if family == "albert" else None, None
    )  # its own are for pairs
    torch.manual_seed(0)
    scoring = PretrainModule(new_model(model), names, "fp32")
    fixed = packed.most_predictions()
    batches = [
        collate(
            packed.take(*Sampler(len(packed), 2, 1).locate(samples)),
            pad=0,
            longest=32,
            fixed_predictions=fixed,
        )
        for samples in np.arange(18).reshape(3, 6)
    ]
    assert len({int(batch["sequence_first"].sum()) for batch in batches}) > 1
    torch._dynamo.reset()
    traced = torch.compile(scoring.uncompiled, dynamic=False, fullgraph=True, backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in batches:
            counts = torch.tensor(scoring.count_targets(batch), dtype=torch.float32)
            torch.manual_seed(1)  # of what a generator draws
            loss = traced(batch, counts)[0]
            torch.manual_seed(1)
            torch.testing.assert_close(
                loss, scoring.uncompiled(batch, counts)[0], rtol=1e-5, atol=1e-5
            )
