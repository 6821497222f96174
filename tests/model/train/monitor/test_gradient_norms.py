"""Gradients' norms by part of the network: on one process, and the same from what each
rank of ZeRO holds.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.model import checkpoint
from cloze.model.data.batch import collate
from cloze.model.data.mixture import make_sampler
from cloze.model.data.shards import ShardedRows
from cloze.model.families.models import load_model
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.monitor.gradient_norms import GROUPS, groups_of
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, config, here, job, run_all

ENGINES: tuple[dict[str, Any], ...] = (
    {"engine": "torch"},
    {"engine": "fsdp"},
    *({"engine": "deepspeed", "zero": zero} for zero in (1, 2, 3)),
)
SEEN = [f"grad_norm_{group}" for group in GROUPS]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", vocab_size=67)


def test_layers_lie_in_thirds() -> None:
    def thirds(layers: int) -> str:
        group = groups_of(f"encoder.layers.{n}.attention.weight" for n in range(layers))
        return "".join(
            group(f"encoder.layers.{n}.output.bias").split("_")[1][0] for n in range(layers)
        )

    assert [thirds(n) for n in (1, 2, 3, 4, 12)] == ["l", "lm", "lmu", "llmu", "llllmmmmuuuu"]
    group = groups_of(
        [
            "encoder.layers.0.w",
            "generator.encoder.layers.0.w",
            "generator.encoder.layers.2.w",
            "encoder.groups.1.w",
        ]
    )
    assert group("encoder.embeddings.word.weight") == "embeddings"
    assert group("generator.encoder.layers.2.w") == "layers_upper"
    assert {
        group(name) for name in ("masked_lm.dense.weight", "encoder.norm.weight", "pooler.bias")
    } == {"heads"}


def test_the_figures_are_those_of_the_step(dataset: str, tmp_path: Path) -> None:
    """Of a training of one step, by a gradient that is found anew from the weights before it."""
    model = {**STILL, "num_hidden_layers": 3}
    settings = config(
        steps=2,
        warmup_steps=0,
        schedule="constant",
        log_every=1,
        model=model,
        grad_clip=0.05,
        heldout_rows=0,
        milestones=(1,),
    )
    run = here(settings, dataset, tmp_path / "run", checkpoint_every=1)
    line = lines(tmp_path / "run" / "metrics.jsonl")[1]
    before = checkpoint.load(str(tmp_path / "run" / "checkpoints" / "step-00000001"))
    network = load_model(before.model, before.state)
    scoring = PretrainModule(network, ("mlm", "nsp"), "fp32").train()
    shards = ShardedRows(dataset)
    order = make_sampler(shards, 1, False, 8, None)
    batch = collate(shards.take(*order.locate(np.arange(8, 16))), pad=0, longest=32)
    loss, _ = scoring(batch, torch.tensor([float(max(1, n)) for n in scoring.count_targets(batch)]))
    loss.backward()
    group = groups_of(name for name, _ in network.named_parameters())
    for wanted in GROUPS:
        of = [parameter for name, parameter in network.named_parameters() if group(name) == wanted]
        gradient = (
            sum(
                float(parameter.grad.square().sum())
                for parameter in of
                if parameter.grad is not None
            )
            ** 0.5
        )
        assert line[f"grad_norm_{wanted}"] == pytest.approx(gradient, rel=1e-3), wanted
    assert sum(float(line[f"grad_norm_{wanted}"]) ** 2 for wanted in GROUPS) == pytest.approx(
        float(line["grad_norm"]) ** 2, rel=1e-3
    )
    assert run.outcome is not None


@pytest.mark.parametrize(
    "engines",
    [ENGINES[1:3], pytest.param((*ENGINES[:1], *ENGINES[3:]), marks=pytest.mark.soak)],
    ids=["some", "others"],
)
def test_all_engines_see_the_same(
    dataset: str, tmp_path: Path, engines: tuple[dict[str, Any], ...]
) -> None:
    """Two ranks hold whole parameters, or pieces of flattened ones; a long step is clipped."""
    settings = config(
        steps=4, log_every=2, model={**STILL, "num_hidden_layers": 3}, grad_clip=0.1, heldout_rows=0
    )
    names = ["-".join(map(str, how.values())) for how in engines]
    jobs = [
        job(settings, dataset, tmp_path / name, threads=1, device="cpu", processes=2, **how)
        for name, how in zip(names, engines, strict=True)
    ]
    run_all(jobs, 2)
    told = [lines(tmp_path / name / "metrics.jsonl") for name in names]
    alone = here(settings, dataset, tmp_path / "alone", micro_batch=4)
    for name, found in zip(names, told, strict=True):
        for line, other in zip(found, lines(Path(alone.build.path) / "metrics.jsonl"), strict=True):
            assert {key for key in line if key.startswith("grad_norm_")} == set(SEEN), name
            for key in SEEN:
                assert line[key] == pytest.approx(other[key], rel=5e-3), (name, line["step"], key)


def test_a_step_without_an_update_has_no_figures(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloze.model.train.engines.torch import TorchEngine

    steps = itertools.count(1)
    backward = TorchEngine.backward

    def broken(
        engine: TorchEngine, batch: Any, counts: torch.Tensor, *, last: bool
    ) -> torch.Tensor:
        return backward(
            engine, batch, counts * (float("nan") if next(steps) == 2 else 1), last=last
        )

    monkeypatch.setattr(TorchEngine, "backward", broken)
    here(config(steps=3, log_every=1, heldout_rows=0), dataset, tmp_path / "run")
    found = [
        [name for name in line if name.startswith("grad_norm_")]
        for line in lines(tmp_path / "run" / "metrics.jsonl")
    ]
    assert [bool(names) for names in found] == [True, False, True]
