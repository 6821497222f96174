"""A run is compiled where that pays, and as it was asked for where it was."""

from __future__ import annotations

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
from cloze.model.families.registry import FAMILIES, config_class, model_config, parse_model
from cloze.model.objectives import choose
from cloze.model.train import compile_policy
from cloze.model.train.compile_policy import WorkEstimate, decide_compile, fill_ratio
from cloze.model.train.evaluate.scoring import PretrainModule
from tests.model.datasets import write_dataset
from tests.model.train.ranks import STILL, TINY
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import make, write_vocab

CPU = torch.device("cpu")
LONG, SHORT = 1e9, 1e6  # tokens: hours and seconds of a BERT-mini


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    return ShardedRows(write_dataset(tmp_path_factory.mktemp("rows") / "full", full=True))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> ShardedRows:
    path = tmp_path_factory.mktemp("packed")
    corpus, vocab = write_corpus(path / "corpus", made_documents(40)), write_vocab(path)
    return ShardedRows(make(corpus, vocab, path / "packed", recipe="packed", length=32).artifact)


def compiled(
    rows: ShardedRows,
    wanted: bool | None = None,
    tokens: float = LONG,
    seconds: float | None = None,
    **changes: Any,
) -> bool:
    values: dict[str, Any] = {
        "model": "bert-mini",
        "device": CPU,
        "precision": "bf16",
        "zero": 1,
        **changes,
    }
    model = model_config(values.pop("model"), vocab_size=1000)
    work = WorkEstimate(positions=tokens, seconds=seconds)
    return decide_compile(
        wanted, values.pop("recorded", None), model, work, rows, **values
    ).compiled


def test_a_long_run_is_and_a_short_one_is_not(rows: ShardedRows) -> None:
    assert compiled(rows)
    assert not compiled(rows, tokens=SHORT)
    tokens = SHORT  # what is just worth it in bf16 is not in fp32, which gains less
    while not compiled(rows, tokens=tokens):
        tokens *= 1.1
    assert SHORT < tokens < LONG
    assert not compiled(rows, tokens=tokens, precision="fp32")
    assert compiled(rows, tokens=0, seconds=3600)
    assert not compiled(rows, tokens=LONG, seconds=60)


def test_what_was_asked_for_is_done(rows: ShardedRows) -> None:
    assert compiled(rows, True, tokens=1)
    assert not compiled(rows, False)


def test_what_cannot_be_compiled_is_refused_even_if_asked_for(rows: ShardedRows) -> None:
    with pytest.raises(UsageError, match=r"compile \(true\) is not for ZeRO stage 3"):
        compiled(rows, True, zero=3)
    with pytest.raises(
        UsageError, match=r"compile \(true\) is not for models of the family deberta"
    ):
        compiled(rows, True, model="deberta-v3-tiny")


def test_what_a_checkpoint_records_is_gone_on_with(rows: ShardedRows) -> None:
    assert compiled(rows, recorded=True, tokens=1)
    assert not compiled(rows, recorded=False)
    with pytest.raises(
        UsageError, match=r"compile \(false\) is not how the checkpoint .* was trained \(true\)"
    ):
        compiled(rows, False, recorded=True)


def test_where_compiling_gains_nothing_or_is_not_known_to(
    rows: ShardedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not compiled(rows, zero=3)
    assert not compiled(rows, model="deberta-v3-tiny")
    assert compiled(rows, model="longformer-tiny"), (
        "global tokens, whose number differs, are fine-tuning's alone"
    )
    ragged = ShardedRows(
        write_dataset(tmp_path / "ragged")
    )  # rows at least half as long as they may be
    assert fill_ratio(ragged) == pytest.approx(0.75, abs=0.05)
    assert not compiled(ragged)
    monkeypatch.setattr(compile_policy, "_compiler", lambda: None)
    assert decide_compile(
        None, None, model_config("bert-mini"), WorkEstimate(positions=LONG), rows, CPU, "bf16", 1
    ) == compile_policy.CompileDecision(False, "there is no C++ compiler")


def test_a_gpu_compiles_what_takes_minutes(
    rows: ShardedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ragged rows too, and with activation checkpointing."""

    def decided(positions: float, **changes: Any) -> compile_policy.CompileDecision:
        model, work = model_config("bert-base"), WorkEstimate(positions=positions)
        gpu = torch.device("cuda")
        return decide_compile(None, None, model, work, rows, gpu, "bf16", 0, **changes)

    monkeypatch.setattr(compile_policy, "find_spec", lambda name: None)
    assert "Triton is not installed" in decided(1e11).reason
    monkeypatch.setattr(compile_policy, "find_spec", lambda name: object())
    assert decided(1e11).compiled
    assert decided(1e11, recomputes=True).compiled
    assert not decided(1e6).compiled


def test_packed_rows_are_compiled_where_they_are_full(packed: ShardedRows) -> None:
    """A row has one length whatever it holds, and many documents are no padding."""
    assert packed.info is not None
    assert packed.info.packed
    assert WORTH < fill_ratio(packed) == packed.tokens() / (32 * len(packed)) < 1.0
    assert compiled(packed)
    assert compiled(packed, True, tokens=1)
    assert not compiled(packed, False)
    assert not compiled(packed, tokens=SHORT)
    assert compiled(packed, recorded=True, tokens=1)
    assert not compiled(packed, recorded=False)
    with pytest.raises(
        UsageError, match=r"compile \(true\) is not for samples that are read from left to right"
    ):
        compiled(packed, True, directions=AttentionModes(causal_share=0.5))
    assert compiled(packed, model="gpt2-tiny"), "a decoder's batches have one shape, too"


COMPILED = [family for family in FAMILIES if config_class(family).supports_compile]


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
