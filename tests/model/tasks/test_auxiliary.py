"""Language modelling beside a task: its masks, its share of the loss, and that it resumes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from cloze.core.errors import StoppedError, UsageError
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import load_model
from cloze.model.families.registry import FAMILIES
from cloze.model.layers.batch import IGNORE_INDEX
from cloze.model.tasks.auxiliary import MASKED_IDS, Auxiliary, add_auxiliary
from cloze.model.tasks.encode import encode
from cloze.model.tasks.finetune.stage import STAGE, FinetuneConfig
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.source import TaskObjective
from cloze.model.tasks.table import load_task
from cloze.model.train.plan.estimates import logit_flops_per_token
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.glue_files import write_glue
from tests.model.tasks.conftest import BAD, GOOD, NEUTRAL
from tests.model.tasks.stages import Listener, evaluate, finetune, settings
from tests.model.tasks.test_families import pretrained_of

CPU = torch.device("cpu")
MLM = {"auxiliary": {"mlm": 0.5}, "baselines": False, "epochs": 2}
LABELS = {"labels": ["0", "1"]}
TEXTS = [" ".join([*NEUTRAL, *GOOD[: n % 4], *BAD[: n % 3]]) for n in range(24)]


def build(path: str, wanted: dict[str, float]) -> tuple[TaskObjective, Auxiliary]:
    """The trained module of sst2 from a checkpoint, without dropout, and its auxiliary."""
    loaded, task = checkpoint.load(path), load_task("sst2")
    network = new_network(task, loaded.model, loaded.state, LABELS, 0.0, seed=1)
    auxiliary = add_auxiliary(network, wanted, loaded.model, loaded.state, loaded.tokenizer, seed=1)
    assert auxiliary is not None
    module = TaskObjective(task, network, "fp32", CPU, auxiliary=auxiliary)
    module.eval()
    return module, auxiliary


def batch(pieces: Tokenizer, indices: Any = None) -> Any:
    labels = np.arange(len(TEXTS)) % 2
    samples = encode(TEXTS, None, pieces, 32, {"labels": labels})
    return samples.batch(np.arange(len(TEXTS)) if indices is None else np.array(indices))


def test_masks_follow_from_seed_step_and_text_alone(pretrained: str, pieces: Tokenizer) -> None:
    _, auxiliary = build(pretrained, {"mlm": 0.1})
    whole = auxiliary.inputs(batch(pieces), 3)
    changed = whole[MASKED_IDS] != whole["input_ids"]
    real = int(whole["attention_mask"].sum())
    predicted = int((whole["masked_labels"] != IGNORE_INDEX).sum())
    assert 0.1 < predicted / real < 0.2
    assert 0.5 * predicted < int(changed.sum()) <= predicted
    special = (whole["input_ids"] == pieces.special.cls) | (
        whole["input_ids"] == pieces.special.sep
    )
    assert not (changed & special).any()
    for row in (5, 17):  # alone as among others
        alone = auxiliary.inputs(batch(pieces, [row]), 3)
        length = alone[MASKED_IDS].shape[1]
        assert torch.equal(alone[MASKED_IDS][0], whole[MASKED_IDS][row, :length])
    assert torch.equal(auxiliary.inputs(batch(pieces), 3)[MASKED_IDS], whole[MASKED_IDS])
    assert not torch.equal(auxiliary.inputs(batch(pieces), 4)[MASKED_IDS], whole[MASKED_IDS])


def test_the_loss_is_the_tasks_and_a_share_of_the_pretrained_heads(
    pretrained: str, pieces: Tokenizer
) -> None:
    module, auxiliary = build(pretrained, {"mlm": 0.5})
    shown = auxiliary.inputs(batch(pieces), 0)
    counts = torch.tensor(module.count_targets(shown), dtype=torch.float32)
    assert module.names == ("train", "mlm")
    total, figures = module(shown, counts)
    alone, _ = TaskObjective(load_task("sst2"), module.model, "fp32", CPU).eval()(shown, counts[:1])
    loaded = checkpoint.load(pretrained)
    model = load_model(loaded.model, loaded.state)
    outputs = model({**shown, "input_ids": shown[MASKED_IDS]})
    mean = cross_entropy(outputs["mlm_logits"], shown["masked_labels"], ignore_index=IGNORE_INDEX)
    assert total.item() == pytest.approx(alone.item() + 0.5 * mean.item(), rel=1e-5)
    assert (figures[0, 1] / counts[1]).item() == pytest.approx(mean.item(), rel=1e-5)


def test_it_resumes_exactly_and_leaves_no_head(
    tmp_path: Path, pretrained: str, sentiment: Path
) -> None:
    config = settings(sentiment, **MLM)
    log = Listener()
    whole = finetune(config, pretrained, tmp_path / "whole", report=log)
    assert {"train_loss", "mlm_loss", "mlm_accuracy"} <= log.lines[0].keys()
    assert log.lines[-1]["mlm_loss"] < log.lines[0]["mlm_loss"]
    with pytest.raises(StoppedError):
        finetune(config, pretrained, tmp_path / "parts", report=Listener(stop_at=7))
    parts = finetune(config, pretrained, tmp_path / "parts")
    assert parts.manifest.content_sha256 == whole.manifest.content_sha256
    cut = {"micro_batch": 4}
    few = finetune(config, pretrained, tmp_path / "few", execution=cut)
    states = [checkpoint.load(result.artifact).state for result in (whole, few)]
    assert not any(name.startswith("auxiliary") for name in states[0])
    assert states[0].keys() == states[1].keys()
    scores = evaluate(whole.artifact, tmp_path / "eval", data=str(sentiment)).as_json()
    assert scores["metrics"] == whole.as_json()["metrics"]
    best = finetune(
        settings(sentiment, **MLM, select_checkpoint="best"), pretrained, tmp_path / "best"
    )
    assert best.as_json()["best"]["step"] > 0
    plain = finetune(settings(sentiment, epochs=2, baselines=False), pretrained, tmp_path / "plain")
    tokens, model = 2 * plain.manifest.tokens, checkpoint.load(plain.artifact).model
    once, twice = (float(made.as_json()["training_flops"]) for made in (plain, whole))
    second_pass = once + tokens * logit_flops_per_token(model)
    assert twice == pytest.approx(once + second_pass, rel=1e-3)
    name = "encoder.embeddings.word.weight"
    assert not torch.equal(checkpoint.load(plain.artifact).state[name], states[0][name])


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_with_such_a_head_learns_and_the_others_refuse(
    family: str, tmp_path: Path, pieces: Tokenizer, shape: ModelConfig, sentiment: Path
) -> None:
    path = pretrained_of(family, tmp_path, pieces, shape)
    heads = checkpoint.load(path).model.heads
    wanted = "lm" if "lm" in heads else "mlm"
    module = None
    if "masked_lm" in heads or "lm" in heads:
        module, auxiliary = build(path, {wanted: 1.0})
        shown = auxiliary.inputs(batch(pieces), 0)
        total, _ = module(shown, torch.tensor(module.count_targets(shown)))
        total.backward()
        assert module.model.encoder.embeddings.word.weight.grad is not None
        assert torch.isfinite(total)
    other = "mlm" if wanted == "lm" or module is None else "lm"
    with pytest.raises(UsageError, match=rf"auxiliary \({other}\) needs the head"):
        build(path, {other: 1.0})


def test_a_checkpoint_without_the_head_is_refused_and_random_weights_have_a_new_one(
    tmp_path: Path, pretrained: str, sentiment: Path
) -> None:
    config = settings(sentiment, epochs=1, baselines=False)
    finetune(config, pretrained, tmp_path / "tuned")
    with pytest.raises(UsageError, match=r"checkpoint's masked_lm, .* name a pretrained"):
        finetune(settings(sentiment, **MLM), str(tmp_path / "tuned"), tmp_path / "again")
    scratch = settings(sentiment, **{**MLM, "from_scratch": True, "epochs": 1})
    finetune(scratch, pretrained, tmp_path / "scratch")
    for values in ({"auxiliary": {"mlm": 1, "lm": 1}}, {"auxiliary": {"mlm": 1}, "frozen": "last"}):
        with pytest.raises(ValidationError, match="takes one objective"):
            FinetuneConfig.model_validate(values)


def test_a_tasks_weight_scales_its_loss_and_only_then_counts(
    tmp_path: Path, pretrained: str
) -> None:
    data = write_glue(tmp_path / "glue")
    both = {"sst2": {}, "rte": {}}

    def config(**weights: float) -> FinetuneConfig:
        tasks = {name: {"weight": weights[name]} if name in weights else {} for name in both}
        more = {"epochs": 1, "baselines": False, "tasks": tasks}
        return settings(data, task="multitask", **more)

    plain, ones, heavy = config(), config(sst2=1.0), config(rte=3.0)
    prints = [STAGE.fingerprint(one, {}) for one in (plain, ones, heavy)]
    assert prints[0] == prints[1] != prints[2]
    task = load_task("multitask", heavy.given_options())
    outputs, rows = torch.zeros(2, 2), {"labels": torch.tensor([0, 1])}
    zero = torch.zeros(())
    losses = {
        name: task.loss((outputs, zero), {**rows, f"of {name}": torch.ones(())}).total.item()
        for name in both
    }
    assert losses["rte"] == pytest.approx(3 * losses["sst2"])
    states = [
        checkpoint.load(finetune(one, pretrained, tmp_path / name).artifact).state
        for name, one in (("plain", plain), ("heavy", heavy))
    ]
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])
