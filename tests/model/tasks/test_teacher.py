"""A teacher on a task: its losses against independent formulas, gradients, resuming, errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, mse_loss, softmax

from cloze.core.errors import StoppedError, UsageError
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.objectives.distill_options import DistillOptions
from cloze.model.tasks.encode import encode
from cloze.model.tasks.finetune import run
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.source import TaskObjective
from cloze.model.tasks.table import load_task
from cloze.model.tasks.teacher import TaskTeacher
from cloze.model.train.plan.estimates import encoder_flops_per_token
from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.conftest import BAD, GOOD, NEUTRAL
from tests.model.tasks.stages import Listener, evaluate, finetune, settings
from tests.model.tasks.test_families import pretrained_of
from tests.tiny_models import TRANSFORMERS

CPU = torch.device("cpu")
LABELS = {"labels": ["0", "1"]}
TEXTS = [" ".join([*NEUTRAL, *GOOD[: n % 4], *BAD[: n % 3]]) for n in range(12)]
ALL = {"labels": 0.25, "soft": 0.5, "hidden": 2.0, "relations": 3.0, "temperature": 3.0}


def batch(pieces: Tokenizer, layout: Any = "rows") -> Any:
    labels = np.arange(len(TEXTS)) % 2
    samples = encode(TEXTS, None, pieces, 32, {"labels": labels})
    return samples.batch(np.arange(len(TEXTS)), layout)


def module_of(
    student: ModelConfig, teacher: ModelConfig, **options: float
) -> tuple[TaskObjective, TaskTeacher]:
    """The trained module of sst2, without dropout, with random weights on both sides."""
    task = load_task("sst2")
    other = new_network(task, teacher, None, LABELS, 0.0, seed=2)
    found = TaskTeacher(
        options=DistillOptions.model_validate(options),
        model=teacher,
        network=other.eval().requires_grad_(False),
    )
    network = new_network(task, student, None, LABELS, 0.0, seed=1)
    losses = found.losses_of(network, student)
    module = TaskObjective(task, network, "fp32", CPU, teacher_losses=losses)
    return module.eval(), found


def states(network: Any, shown: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Embeddings and layers, and q, k, v of the last layer, computed layer by layer."""
    encoder = network.encoder
    rows = encoder.rows(shown["input_ids"], shown["attention_mask"])
    found = [encoder.embeddings(shown["input_ids"], shown["token_type_ids"], rows.positions)]
    for layer in encoder.layers:
        found.append(layer(found[-1], rows))
    attention = encoder.layers[-1].attention
    return found, [getattr(attention, name)(found[-2]) for name in ("query", "key", "value")]


@pytest.mark.parametrize("layout", ["rows", "buckets"])
def test_the_losses_are_those_of_the_papers(
    pieces: Tokenizer, shape: ModelConfig, layout: str
) -> None:
    narrow = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    student, teacher = (shape.model_copy(update=of) for of in (narrow, {"num_hidden_layers": 4}))
    module, found = module_of(student, teacher, **ALL)
    plain, shown = batch(pieces), batch(pieces, layout)
    assert module.names == ("train", "soft", "states", "relations")
    counts = torch.tensor(module.count_targets(shown), dtype=torch.float32)
    total, figures = module(shown, counts)

    own, other = module.model(plain), found.network(plain)
    real = plain["attention_mask"]
    assert counts.tolist() == [12, 12, int(real.sum()), int(real.sum())]
    labels = torch.nn.functional.cross_entropy(own, plain["labels"])
    soft = 9 * kl_div(
        log_softmax(own / 3, -1), softmax(other / 3, -1), reduction="batchmean", log_target=False
    )
    mine, q = states(module.model, plain)
    theirs, t = states(found.network, plain)
    pairs = [(mine[n], theirs[2 * n]) for n in range(len(mine))]
    mapped = module.model.distillation
    hidden = sum(mse_loss(mapped(a)[real], b[real]) for a, b in pairs) / len(pairs)
    heads, relations = teacher.num_attention_heads, torch.zeros(())
    for a, b in zip(q, t, strict=True):
        for row in range(len(TEXTS)):
            length = int(real[row].sum())
            for head_a, head_b in zip(
                a[row, :length].chunk(heads, -1), b[row, :length].chunk(heads, -1), strict=True
            ):
                ours, right = (
                    softmax(x @ x.T / math.sqrt(x.shape[-1]), -1) for x in (head_a, head_b)
                )
                relations = relations + (right * (right / ours).log()).sum() / heads
    relations = relations / real.sum()
    wanted = 0.25 * labels + 0.5 * soft + 2 * hidden + 3 * relations
    torch.testing.assert_close(total, wanted, rtol=1e-5, atol=1e-5)
    means = (figures[0] / counts).float()
    expected = torch.stack([labels, soft, hidden, relations])
    torch.testing.assert_close(means, expected.detach(), rtol=1e-4, atol=1e-5)
    total.backward()
    assert all(parameter.grad is None for parameter in found.network.parameters())
    assert mapped.weight.grad is not None


def test_answers_of_each_kind_are_compared_as_its_labels_are() -> None:
    student, teacher = torch.randn(4, 3), torch.randn(4, 3)

    def divergence(a: Tensor, b: Tensor, dim: int = -1) -> Tensor:
        return 4 * kl_div(log_softmax(a / 2, dim), softmax(b / 2, dim), reduction="sum")

    def loss(name: str, a: Tensor, b: Tensor, rows: Any) -> Tensor:
        return load_task(name).soft_loss(a, b, rows, 2.0).total

    close = torch.testing.assert_close
    close(loss("sst2", student, teacher, {}), divergence(student, teacher))
    scores = {"scores": torch.zeros(4)}
    numbers = student[:, :1], teacher[:, :1]
    close(loss("stsb", *numbers, scores), (numbers[0] - numbers[1]).square().sum())
    a, b = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    first = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 0, 0, 0]], dtype=torch.bool)
    close(loss("conll2003", a, b, {"first_pieces": first}), divergence(a[first], b[first]))
    real = {"attention_mask": torch.tensor([[True] * 5, [True] * 3 + [False] * 2])}
    a, b = a[..., :2], b[..., :2]
    wanted = divergence(a[0], b[0], 0) + divergence(a[1, :3], b[1, :3], 0)
    close(loss("squad", a, b, real), wanted / 2)
    endings = {"endings": torch.tensor([[0, 1, 2], [3, 4, -1]])}
    a, b = torch.randn(5, 1), torch.randn(5, 1)
    wanted = divergence(a[:3], b[:3], 0) + divergence(a[3:], b[3:], 0)
    close(loss("swag", a, b, endings), wanted)
    sharp = load_task("swag").soft_loss(a, b, endings, 0.5).total  # a missing ending stays finite
    assert torch.isfinite(sharp)
    with pytest.raises(UsageError, match="distill.soft means nothing to task"):
        load_task("multitask", {"tasks": {"sst2": {}, "rte": {}}}).soft_loss(a, b, {}, 2.0)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: Any, pretrained: str, sentiment: Path) -> str:
    """A teacher on sst2."""
    out = tmp_path_factory.mktemp("teacher") / "tuned"
    finetune(settings(sentiment, baselines=False, epochs=4), pretrained, out)
    return str(out)


def test_it_resumes_exactly_learns_the_answers_and_leaves_no_projection(
    tmp_path: Path, pretrained: str, tuned: str, sentiment: Path
) -> None:
    narrow = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    base = checkpoint.load(pretrained)
    path = str(tmp_path / "narrow")
    model = base.model.model_copy(update=narrow)
    network = new_network(load_task("sst2"), model, None, LABELS, 0.0, seed=5)
    encoder = {n: v for n, v in network.state_dict().items() if n.startswith("encoder.")}
    checkpoint.save_weights(path, model=model, state=encoder, tokenizer=base.tokenizer, heads={})
    checkpoint.finalize(path)
    config = settings(sentiment, distill=ALL, baselines=False, epochs=2, select_checkpoint="best")
    log = Listener()
    whole = finetune(config, path, tmp_path / "whole", report=log, teacher=tuned)
    assert {"train_loss", "soft_loss", "states_loss", "relations_loss"} <= log.lines[0].keys()
    assert log.lines[-1]["states_loss"] < log.lines[0]["states_loss"]
    with pytest.raises(StoppedError):
        finetune(config, path, tmp_path / "parts", report=Listener(stop_at=7), teacher=tuned)
    parts = finetune(config, path, tmp_path / "parts", teacher=tuned)
    assert parts.manifest.content_sha256 == whole.manifest.content_sha256
    state = checkpoint.load(whole.artifact).state
    assert not any(name.startswith("distillation") for name in state)
    scores = evaluate(whole.artifact, tmp_path / "eval", data=str(sentiment)).as_json()
    assert scores["metrics"] == whole.as_json()["metrics"]
    teacher = checkpoint.load(tuned).model
    tokens = whole.as_json()["epochs"] * whole.manifest.tokens
    least, most = (
        tokens * (encoder_flops_per_token(model, seen) + encoder_flops_per_token(teacher, seen) / 3)
        for seen in (2, 32)
    )
    assert least < whole.as_json()["training_flops"] < most
    step = settings(sentiment, distill={"labels": 0, "soft": 0, "hidden": 1}, epochs=1)
    first = finetune(step, path, tmp_path / "first", teacher=tuned)  # TinyBERT's first step
    second = settings(sentiment, distill={"labels": 0, "soft": 1}, epochs=1, baselines=False)
    finetune(second, str(first.artifact), tmp_path / "second", teacher=tuned)


def test_several_tasks_are_learned_from_a_teacher_of_them(
    tmp_path: Path, pretrained: str, tuned: str, sentiment: Path
) -> None:
    tasks = {"sst2": {}, "second": {"task": "sst2", "weight": 2.0}}
    config = settings(
        sentiment, task="multitask", tasks=tasks, epochs=1, max_length=24, baselines=False
    )
    teacher = finetune(config, pretrained, tmp_path / "teacher").artifact
    log = Listener()
    options = DistillOptions.model_validate({**ALL, "soft": 0.0})
    student = config.model_copy(update={"distill": options})
    found = finetune(student, pretrained, tmp_path / "student", report=log, teacher=teacher)
    names = ("train_loss", "states_loss", "relations_loss")
    assert all(log.lines[-1][name] > 0 for name in names)
    assert checkpoint.load(found.artifact).heads.keys() == tasks.keys()
    with pytest.raises(UsageError, match=r"with the name sst2, the student's is \{'sst2'"):
        finetune(config, pretrained, tmp_path / "never", teacher=tuned)


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_every_family_learns_answers_and_states_or_says_what_it_lacks(
    family: str, tmp_path: Path, pieces: Tokenizer, shape: ModelConfig
) -> None:
    model = checkpoint.load(pretrained_of(family, tmp_path, pieces, shape)).model
    module, _ = module_of(model, shape, soft=1.0, hidden=1.0)
    shown = batch(pieces, module.layout)
    total, _ = module(shown, torch.tensor(module.count_targets(shown)))
    total.backward()
    assert torch.isfinite(total)
    assert module.model.encoder.embeddings.word.weight.grad is not None
    if family in ("deberta", "longformer", "xlnet") or model.is_encoder_decoder:
        with pytest.raises(UsageError, match="distill.relations is not for models of the family"):
            module_of(model, shape, relations=1.0)
    else:
        module, _ = module_of(model, shape, relations=1.0)
        total, _ = module(shown, torch.tensor(module.count_targets(shown)))
        assert torch.isfinite(total)


def test_the_teacher_stays_as_it_is_and_has_no_dropout(
    tmp_path: Path, pretrained: str, tuned: str, sentiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers: list[TaskTeacher] = []
    load_teacher = run.load_task_teacher

    def recorded(*arguments: Any) -> TaskTeacher:
        teachers.append(load_teacher(*arguments))
        return teachers[-1]

    monkeypatch.setattr(run, "load_task_teacher", recorded)
    config = settings(sentiment, epochs=1, baselines=False, distill=ALL)
    finetune(config, pretrained, tmp_path / "out", teacher=tuned)
    network = teachers[0].network
    assert not any(module.training for module in network.modules())
    assert not any(parameter.requires_grad for parameter in network.parameters())
    saved = checkpoint.load(tuned).state
    assert all(weight.equal(saved[name]) for name, weight in network.state_dict().items())


def test_what_cannot_teach_is_refused_in_one_sentence(
    tmp_path: Path, pretrained: str, tuned: str, sentiment: Path, vocab_file: str
) -> None:
    config = settings(sentiment, epochs=1, baselines=False)

    def refused(match: str, config: FinetuneConfig = config, **inputs: str) -> None:
        with pytest.raises(UsageError, match=match) as caught:
            finetune(config, pretrained, tmp_path / "never", **inputs)
        assert "\n" not in str(caught.value)

    refused("was pretrained, not fine-tuned", teacher=pretrained)
    words = Path(vocab_file).read_text(encoding="utf-8").split()
    (tmp_path / "vocab.txt").write_text("\n".join([*words[:5], *words[:4:-1]]) + "\n")
    load(str(tmp_path / "vocab.txt")).save(str(tmp_path / "tokenizer"))
    base = checkpoint.load(pretrained)
    checkpoint.save_weights(
        str(tmp_path / "other"),
        model=base.model,
        state=base.state,
        tokenizer=str(tmp_path / "tokenizer"),
        heads=base.heads,
    )
    checkpoint.finalize(str(tmp_path / "other"))
    with pytest.raises(UsageError, match="has another vocabulary") as caught:
        finetune(config, str(tmp_path / "other"), tmp_path / "never", teacher=tuned)
    assert "\n" not in str(caught.value)
    refused(
        r"distill needs a teacher",
        settings(sentiment, epochs=1, distill={"soft": 1.0}),
    )
    refused(r"frozen \(last\)", settings(sentiment, epochs=1, frozen="last"), teacher=tuned)
    heads = settings(sentiment, epochs=1, distill={"relations": 1, "relation_heads": 7})
    refused(r"relation_heads \(7\) must divide", heads, teacher=tuned)
    with pytest.raises(ValidationError, match="has no loss against the teacher"):
        FinetuneConfig.model_validate({"distill": {"soft": 0}})
