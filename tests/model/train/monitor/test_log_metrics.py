"""What a log line tells of speed, memory and the rare pieces, each beside what is
counted by hand.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.model import hardware
from cloze.model.data.batch import TokenCounts, collate, sizes
from cloze.model.data.shards import ShardedRows
from cloze.model.families.registry import model_config
from cloze.model.train.plan.estimates import flops_per_token
from cloze.model.train.throughput import mfu_meter
from tests.model.datasets import lines, strip_timing, write_dataset
from tests.model.train.ranks import config, here

CPU = torch.device("cpu")
OF_EVERY_LINE = {
    "tokens_per_second", "padded_tokens_per_second", "data_wait", "memory_gb", "time_data",
    "time_forward", "time_backward",
    "time_communication", "time_optimizer", "time_save", "time_evaluation", "time_other",
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", heldout=200)


def test_a_line_tells_all_of_it(dataset: str, tmp_path: Path) -> None:
    here(
        config(steps=6, heldout_rows=200, evaluate_every=3),
        dataset,
        tmp_path / "run",
        checkpoint_every=2,
    )
    for line in lines(tmp_path / "run" / "metrics.jsonl"):
        assert line.keys() >= OF_EVERY_LINE
        assert sum(float(line[name]) for name in line if name.startswith("time_")) == pytest.approx(
            1.0, abs=1e-3
        )
        assert line["padded_tokens_per_second"] > line["tokens_per_second"]
        assert (line["time_evaluation"] > 0) == (line["step"] in (3, 6))
        assert not strip_timing(line).keys() & OF_EVERY_LINE
        if line["step"] in (3, 6):
            assert "heldout_loss" in line


@pytest.mark.parametrize("layout", ["rows", "buckets", "packed"])
def test_sizes_are_those_of_the_batch(dataset: str, layout: str) -> None:
    taken = ShardedRows(dataset).take(np.arange(8), np.zeros(8, np.int64))
    found = sizes(collate(taken, pad=0, longest=32, layout=layout))  # type: ignore[arg-type]
    assert found.tokens == taken.lengths.sum()
    assert found.attended == (taken.lengths**2).sum()
    assert (found.positions == found.tokens) == (layout == "packed")
    assert found.tokens <= found.positions <= 8 * 32
    assert found + TokenCounts(1, 2, 3) == TokenCounts(
        found.tokens + 1, found.positions + 2, found.attended + 3
    )


def test_sequences_of_a_packed_row_see_themselves_alone() -> None:
    mask, first = torch.ones(2, 8, dtype=torch.bool), torch.zeros(2, 8, dtype=torch.bool)
    mask[1, 5:] = False
    first[0, [0, 3]] = first[1, 0] = True
    found = sizes({"attention_mask": mask, "sequence_first": first, "input_ids": torch.zeros(2, 8)})
    assert found == TokenCounts(13, 16, 9 + 25 + 25)


@pytest.mark.parametrize(("name", "gigaflops"), [("bert-base", 0.545), ("bert-large", 1.879)])
def test_the_arithmetic_is_that_of_the_published_figures(name: str, gigaflops: float) -> None:
    """72 L h^2 + 12 L h s + 6 rate (h^2 + h V) at 128, V = 30,528, rate .15."""
    assert flops_per_token(model_config(name, vocab_size=30_528), 128) / 1e9 == pytest.approx(
        gigaflops, rel=0.01
    )


def test_a_window_is_all_that_a_token_sees() -> None:
    model = model_config("modern-base", vocab_size=50_368)
    whole = model.num_hidden_layers * 12 * model.hidden_size * 4096
    saved = (
        sum(model.window_of(layer) is not None for layer in range(22))
        * 12
        * model.hidden_size
        * (4096 - 129)
    )
    short = flops_per_token(model, 100) - 22 * 12 * model.hidden_size * 100
    assert flops_per_token(model, 4096) == pytest.approx(short + whole - saved)


def test_a_gpu_s_peak_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model, notes = model_config("bert-tiny", vocab_size=1000), list[str]()
    flops = partial(flops_per_token, model)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    found = mfu_meter(flops, "bf16", torch.device("cuda"), 4, notes)
    assert found is not None
    assert found.peak == 4 * 989e12
    share = found.mfu(1000.0, 64.0)
    assert share == pytest.approx(1000 * flops_per_token(model, 64) / found.peak)
    single = mfu_meter(flops, "fp32", torch.device("cuda"), 1, notes)
    assert single is not None
    assert single.peak == hardware.GPUS["h200"].fp32
    assert not notes
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some Card 9")
    assert mfu_meter(flops, "bf16", torch.device("cuda"), 1, notes) is None
    assert "Some Card 9 in bf16 is not in the table" in notes[0]
    assert mfu_meter(flops, "fp32", CPU, 2, notes) is None


def test_a_cpu_has_no_mfu(dataset: str, tmp_path: Path) -> None:
    run = here(config(steps=2, heldout_rows=200), dataset, tmp_path / "run")
    assert run.outcome is not None
    assert run.outcome.summary["mfu"] is None, "a CPU has no MFU"
