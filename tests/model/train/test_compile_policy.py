"""A run is compiled where that pays, and as it was asked for where it was."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import UsageError
from cloze.model.data.batch import AttentionModes, collate
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import ShardedRows
from cloze.model.families.models import new_model
from cloze.model.families.registry import config_class, model_config, parse_model
from cloze.model.objectives import choose
from cloze.model.train import compile_policy
from cloze.model.train.compile_policy import (
    WorkEstimate,
    decide_on_gpu,
    given_decision,
)
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.plan import micro_batch
from cloze.model.train.plan.estimates import StepCost
from tests.model.datasets import write_dataset
from tests.model.train.ranks import STILL, TINY, config, digests, here
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import make, write_vocab
from tests.tiny_models import TRANSFORMERS

CPU = torch.device("cpu")
MODEL = model_config("bert-mini", vocab_size=1000)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    return ShardedRows(write_dataset(tmp_path_factory.mktemp("rows") / "full", full=True))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    path = tmp_path_factory.mktemp("packed")
    corpus, vocab = write_corpus(path / "corpus", made_documents(40)), write_vocab(path)
    return ShardedRows(make(corpus, vocab, path / "packed", recipe="packed", length=32).artifact)


def given(wanted: bool | None = None, recorded: bool | None = None, **changes: Any) -> bool | None:
    """The decision before the length is looked at; None: there is none."""
    values: dict[str, Any] = {"model": "bert-mini", "device": CPU, "gathers": False, **changes}
    model = model_config(values.pop("model"), vocab_size=1000)
    decision = given_decision(wanted, recorded, model, **values)
    return None if decision is None else decision.compiled


def test_tokens_are_shared_out_to_the_ranks_as_steps_are() -> None:
    length, batch, steps = 128, 256, 3000
    for ranks in (1, 8):
        plan = micro_batch.plan(batch, None, StepCost(MODEL, length), World(0, ranks, CPU))
        by_steps, by_tokens = (
            WorkEstimate.of_rank(PretrainConfig(**duration), plan, length, ranks).micro_batches
            for duration in ({"steps": steps}, {"tokens": steps * batch * length})
        )
        assert by_tokens == by_steps


def test_a_cpu_compiles_what_was_asked_for_and_nothing_else(
    rows: ShardedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a training is, so one command makes the same bytes; a resume goes on with it."""
    assert given() is False
    assert given(True)
    assert given(False) is False
    # Traced, but without generated code, which takes long and is test_compiling.py's.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    settings = config(steps=4, model={"num_hidden_layers": 1})

    def compiled(name: str, **options: Any) -> tuple[bool, Any]:
        finished = here(settings, rows.path, tmp_path / name, **options)
        assert finished.outcome is not None
        return bool(finished.outcome.summary["compiled"]), digests(finished.checkpoint)

    assert compiled("usual") == (False, compiled("plain", compile=False)[1])
    whole = compiled("whole", compile=True)
    assert whole[0]
    here(settings, rows.path, tmp_path / "resumed", stop_at=2, compile=True)
    assert compiled("resumed") == whole, "as the checkpoint records"


def test_what_cannot_be_compiled_is_refused_even_if_asked_for() -> None:
    with pytest.raises(UsageError, match=r"compile \(true\) is not for weights that are gathered"):
        given(True, gathers=True)
    with pytest.raises(
        UsageError, match=r"compile \(true\) is not for models of the family deberta"
    ):
        given(True, model="deberta-v3-tiny")


def test_what_a_checkpoint_records_is_gone_on_with() -> None:
    assert given(recorded=True)
    assert given(recorded=False) is False
    with pytest.raises(
        UsageError, match=r"compile \(false\) is not how the checkpoint .* was trained \(true\)"
    ):
        given(False, recorded=True)


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
    assert given(False, recorded=True, gathers=True) is False
    with pytest.raises(UsageError, match="gathered between the layers"):
        given(True, recorded=True, gathers=True)


def test_a_gpu_compiles_what_takes_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With activation checkpointing, too."""

    def decided(positions: float, **changes: Any) -> compile_policy.CompileDecision:
        model, gpu = model_config("bert-base"), torch.device("cuda")
        work = WorkEstimate(micro_batches=positions / 1024, positions=1024)
        given = given_decision(None, None, model, gpu, False, **changes)
        return decide_on_gpu(model, work) if given is None else given

    monkeypatch.setattr(compile_policy, "find_spec", lambda name: None)
    assert "Triton is not installed" in decided(1e11).reason
    monkeypatch.setattr(compile_policy, "find_spec", lambda name: object())
    assert decided(1e11).compiled
    assert decided(1e11, recomputes=True).compiled
    assert decided(1e11, directions=AttentionModes(causal_share=0.5)).compiled
    assert not decided(1e6).compiled
    assert given(device=torch.device("cuda"), gathers=True) is False
    assert given(device=torch.device("cuda"), model="deberta-v3-tiny") is False
    narrow = model_config("bert-tiny")
    steps = WorkEstimate(micro_batches=5_000, positions=128)
    assert not decide_on_gpu(narrow, steps).compiled
    deep = narrow.model_copy(update={"num_hidden_layers": 12})
    assert decide_on_gpu(deep, steps).compiled, "the host takes as long for narrow layers"


def test_a_cpu_compiles_no_rows_that_are_read_both_ways() -> None:
    with pytest.raises(
        UsageError, match=r"compile \(true\) is not for samples that are read from left to right"
    ):
        given(True, directions=AttentionModes(causal_share=0.5))


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
