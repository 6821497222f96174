"""`--grad-reduce-dtype bf16`: gradients travel in half the bytes, what is trained and saved is fp32, and one
process learns the same to the bit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cloze.core.errors import UsageError
from cloze.core.stages.worker import Job
from cloze.model import checkpoint
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STAGES, config, digests, here, job, run_all, start
from tests.model.train.wire import REDUCES

SETTINGS = {"precision": "bf16", "steps": 6}


def test_one_process_trains_to_the_same_bits(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    usual = here(config(**SETTINGS), dataset, tmp_path / "usual", micro_batch=4)
    found = here(
        config(**SETTINGS, grad_reduce_dtype="bf16"), dataset, tmp_path / "found", micro_batch=4
    )
    mine, theirs = digests(found.checkpoint), digests(usual.checkpoint)
    for file in ("model.safetensors", "training/optimizer.safetensors"):
        assert mine[file] == theirs[file]
    assert (
        checkpoint.load(str(found.checkpoint))
        .state["encoder.layers.0.feed_forward.up.weight"]
        .dtype
        == torch.float32
    )
    here(
        config(**SETTINGS, grad_reduce_dtype="bf16"),
        dataset,
        tmp_path / "halves",
        micro_batch=4,
        stop_at=3,
    )
    resumed = here(
        config(**SETTINGS, grad_reduce_dtype="bf16"), dataset, tmp_path / "halves", micro_batch=4
    )
    assert digests(resumed.checkpoint) == mine


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_stage_and_number_of_ranks_goes_on(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", vocab_size=67)
    values = {"precision": "bf16", "steps": 60, "log_every": 10, "evaluate_every": 60}
    here(
        config(**values, grad_reduce_dtype="bf16"),
        dataset,
        tmp_path / "changing",
        micro_batch=2,
        stop_at=30,
    )

    def run(name: str, stage: str, reduce: str = "bf16") -> Job:
        return job(
            config(**values, grad_reduce_dtype=reduce),
            dataset,
            tmp_path / name,
            **STAGES[stage],
            micro_batch=2,
            threads=1,
        )

    stops: list[int | None] = [None, None]
    jobs = [run("usual", "zero0", "fp32"), run("changing", "zero1")]
    # The third stage last: it leaves torch's linear layers changed, to a last digit in bf16.
    exact = ("zero0", "zero2", "fsdp3", "zero3")
    for stage in exact:
        jobs += [run(stage, stage), *2 * [run(f"halves-{stage}", stage)]]
        stops += [None, 30, None]
    run_all(jobs, 2, stops)
    wanted = [line["loss"] for line in lines(tmp_path / "usual" / "metrics.jsonl")]
    for name in (*exact, "changing"):
        losses = [line["loss"] for line in lines(tmp_path / name / "metrics.jsonl")]
        assert losses == pytest.approx(wanted, abs=0.03), name
        assert losses != wanted, "nothing was rounded on the way"
    last = "checkpoints/step-00000060"
    for stage in exact:
        halves = digests(tmp_path / f"halves-{stage}" / last)
        assert halves == digests(tmp_path / stage / last), stage


@pytest.mark.parametrize(
    "names",
    [
        ("torch0", "fsdp3", "deepspeed2"),
        pytest.param(("fsdp2", "deepspeed1", "deepspeed3"), marks=pytest.mark.soak),
    ],
    ids="-".join,
)
@pytest.mark.soak
def test_gradients_take_half_the_bytes(tmp_path: Path, names: tuple[str, ...]) -> None:
    processes = start(["-m", "tests.model.train.wire", str(tmp_path), *names], 2, tmp_path / "log")
    codes = [process.wait(timeout=900) for process in processes]
    assert not any(codes), (tmp_path / "log").read_text()[-4000:]
    found = {tuple(case): sent for case, sent in json.loads((tmp_path / "wire.json").read_text())}
    assert [f"{engine}{zero}" for engine, zero, _ in found] == [
        name for name in names for _ in REDUCES
    ]
    for engine, zero, _ in list(found)[::2]:
        before, after = found[engine, zero, "fp32"], found[engine, zero, "bf16"]
        assert before.keys() <= {"torch.float32", "torch.float64"}
        assert after["torch.bfloat16"] == pytest.approx(before["torch.float32"] / 2, rel=0.01), (
            engine,
            zero,
        )
        assert sum(after.values()) < 0.51 * sum(before.values())


def test_gradients_that_were_not_computed_in_bf16_do_not_travel_in_it(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    with pytest.raises(
        UsageError,
        match=r"grad_reduce_dtype \(bf16\) requires precision bf16, and precision is fp32",
    ):
        here(config(grad_reduce_dtype="bf16"), dataset, tmp_path / "run")
