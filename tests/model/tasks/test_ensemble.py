"""Ensembles: the mean of the members' outputs, computed here again; who can be a member; and how a
run's graph names all seeds.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.storage import read_tsv
from cloze.flows.graph.config import RunConfig
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_model
from cloze.model.tasks.evaluate.stage import STAGE, EvaluateConfig
from cloze.model.tasks.kinds.tagging import Tags
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.task import Member
from cloze.pipeline import tokenizer
from tests.model.tasks.columns import sentences, write_columns
from tests.model.tasks.conftest import BAD, GOOD, NEUTRAL, SPECIAL
from tests.model.tasks.stages import ALONE, evaluate, finetune, settings
from tests.model.tasks.test_choice import write_swag
from tests.model.tasks.test_spans_stages import content, write
from tests.slices import few

FEW = {"epochs": 1, "baselines": False}


def together(out: Path, *members: Path, **values: Any) -> BuildResult:
    inputs = {f"checkpoint/{number}": str(path) for number, path in enumerate(members)}
    config = EvaluateConfig(precision="fp32", **values)
    return execute(STAGE, config, inputs, str(out), execution=Execution.model_validate(ALONE))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, shape: ModelConfig) -> str:
    """A checkpoint with another vocabulary: other numbers, and one token more."""
    directory = tmp_path_factory.mktemp("other")
    pieces = [*SPECIAL, *NEUTRAL, *BAD, *GOOD, "##ly", "##s"]
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    vocabulary = tokenizer.load(str(directory / "vocab.txt"))
    vocabulary.save(str(directory / "tokenizer"))
    model = shape.model_copy(update={"vocab_size": vocabulary.vocab_size})
    torch.manual_seed(11)
    path = str(directory / "checkpoint")
    checkpoint.save_weights(
        path,
        model=model,
        state=new_model(model).state_dict(),
        tokenizer=str(directory / "tokenizer"),
        heads=model.heads,
    )
    checkpoint.finalize(path)
    return path


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, sentiment: Path, likeness: Path) -> Path:
    """Data of five tasks: sst2, stsb, swag, tagging and squad2."""
    root = tmp_path_factory.mktemp("tasks")
    (root / "sst2").symlink_to(sentiment)
    (root / "stsb").symlink_to(likeness)
    for name in ("swag", "tagging", "squad2"):
        (root / name).mkdir()
    write_swag(root / "swag")
    for split, count, seed in (("train", 60, 1), ("dev", 20, 2)):
        write_columns(root / "tagging" / f"{split}.txt", sentences(count, seed))
        write(root / "squad2" / f"{split}-v2.0.json", content(count, seed=seed))
    return root


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, pretrained: str, tasks: Path) -> Any:
    """A function that fine-tunes on a task with a seed, once."""
    root, made = tmp_path_factory.mktemp("tuned"), dict[tuple[Any, ...], Path]()

    def tune(task: str, seed: int, start: str = pretrained) -> Path:
        if (task, seed, start) not in made:
            made[task, seed, start] = out = root / str(len(made))
            more = {**FEW, "epochs": 8} if task == "tagging" else FEW
            finetune(settings(tasks / task, task=task, seed=seed, **more), start, out)
        return made[task, seed, start]

    return tune


@pytest.mark.parametrize(
    "task", few(["sst2", "stsb", "swag", "tagging", "squad2"], "stsb", "squad2")
)
def test_equal_members_predict_as_each_alone_and_others_do_not(
    tuned: Any, tasks: Path, tmp_path: Path, task: str
) -> None:
    one, two, data = tuned(task, 1), tuned(task, 2), {"data": str(tasks / task)}
    alone = evaluate(one, tmp_path / "alone", **data)
    three = together(tmp_path / "three", one, one, one, **data)
    assert three.as_json()["metrics"] == alone.as_json()["metrics"]
    assert three.as_json()["members"] == ["0", "1", "2"]
    assert "members" not in alone.as_json()
    assert alone.manifest.parents.keys() == {"checkpoint", "data"}
    file = alone.as_json()["predictions"]
    content = [(tmp_path / name / file).read_bytes() for name in ("alone", "three")]
    assert content[0] == content[1]
    if task != "tagging":  # whose file has no scores, and both seeds agree on the tags
        mixed = together(tmp_path / "mixed", one, two, **data)
        assert mixed.manifest.content_sha256 != three.manifest.content_sha256


def test_probabilities_and_numbers_are_means(tuned: Any, tasks: Path, tmp_path: Path) -> None:
    paths = [tuned("sst2", seed) for seed in (1, 2)]
    models = [FinetunedModel(str(path)) for path in paths]
    examples = models[0].task.read(str(tasks / "sst2"), "dev", None)
    means = sum(model.predict(model.encode(examples)).astype(np.float64) for model in models) / 2
    together(tmp_path / "sst2", *paths, data=str(tasks / "sst2"))
    rows = read_tsv(str(tmp_path / "sst2" / "predictions.tsv"))
    assert [row["prediction"] for row in rows] == [str(row.argmax()) for row in means]
    assert [float(row["score"]) for row in rows] == pytest.approx(means.max(axis=1), abs=1e-6)

    paths = [tuned("stsb", seed) for seed in (1, 2)]
    alone = []
    for number, path in enumerate(paths):
        evaluate(path, tmp_path / f"alone-{number}", data=str(tasks / "stsb"))
        rows = read_tsv(str(tmp_path / f"alone-{number}" / "predictions.tsv"))
        alone.append([float(row["prediction"]) for row in rows])
    together(tmp_path / "stsb", *paths, data=str(tasks / "stsb"))
    rows = read_tsv(str(tmp_path / "stsb" / "predictions.tsv"))
    assert [float(row["prediction"]) for row in rows] == pytest.approx(
        np.mean(alone, axis=0), abs=2e-6
    )


def test_tags_are_of_mean_probabilities_and_spans_of_mean_logits(tuned: Any, tasks: Path) -> None:
    model = FinetunedModel(str(tuned("tagging", 1)))
    examples = model.encode(model.task.read(str(tasks / "tagging"), "dev", None)).examples
    member = model.member(examples)
    sure = [np.zeros_like(rows) for rows in member.answers]
    for rows in sure:
        rows[:, 1] = 0.9  # each word: the first label beside O
    agreed = model.task.combine([member, Member(answers=sure, samples=member.samples)], examples)
    assert isinstance(agreed, Tags)
    name = examples.label_names[1]  # type: ignore[attr-defined]
    alone = model.predict(model.encode(examples))
    certain = [
        (tag, other)
        for tags, others, scores in zip(agreed.tags, alone.tags, alone.scores, strict=True)
        for tag, other, score in zip(tags, others, scores, strict=True)
        if score < 0.9
    ]
    assert certain
    assert {tag for tag, _ in certain} == {name}

    model = FinetunedModel(str(tuned("squad2", 1)))
    examples = model.task.read(str(tasks / "squad2"), "dev", None)
    member = model.member(examples)
    opposite = dataclasses.replace(member, answers=[-rows for rows in member.answers])
    nothing = model.task.combine([member, opposite], examples)
    assert {span.score for prediction in nothing for span in prediction.spans} == {0.0}
    assert {prediction.null for prediction in nothing} == {(0.0, 0.0)}


def test_vocabularies_may_differ_for_texts_and_words_not_for_spans(
    tuned: Any, tasks: Path, other: str, tmp_path: Path
) -> None:
    for task in ("sst2", "tagging"):
        members = tuned(task, 1), tuned(task, 1, other)
        scores = together(tmp_path / task, *members, data=str(tasks / task)).as_json()["metrics"]
        assert all(0 <= score <= 1 for score in scores.values())
    members = tuned("squad2", 1), tuned("squad2", 1, other)
    with pytest.raises(UsageError, match="different windows of tokens"):
        together(tmp_path / "spans", *members, data=str(tasks / "squad2"))


def test_members_of_other_tasks_or_labels_and_kinds_without_a_mean_are_refused(
    tuned: Any, tasks: Path, pretrained: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"models with the name sst2 and tagging"):
        members = tuned("sst2", 1), tuned("tagging", 1)
        together(tmp_path / "a", *members, data=str(tasks / "sst2"))
    config = settings(tasks / "sst2", options={"labels": ["1", "0"]}, **FEW)
    finetune(config, pretrained, tmp_path / "swapped")
    with pytest.raises(UsageError, match=r"the labels \['0', '1'\] and \['1', '0'\]"):
        members = tuned("sst2", 1), tmp_path / "swapped"
        together(tmp_path / "b", *members, data=str(tasks / "sst2"))
    (tmp_path / "pairs").mkdir()
    rows = [{"query": word, "passage": f"{word} {word}"} for word in GOOD]
    for split in ("train", "dev"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "pairs" / f"{split}.jsonl").write_text(lines)
    config = settings(tmp_path / "pairs", task="retrieval", **FEW)
    finetune(config, pretrained, tmp_path / "retrieval")
    with pytest.raises(UsageError, match="outputs of task retrieval cannot be averaged"):
        members = tmp_path / "retrieval", tmp_path / "retrieval"
        together(tmp_path / "c", *members, data=str(tmp_path / "pairs"))


# As a node of a run.

RUN: dict[str, Any] = {
    "finetune": {
        "checkpoint": "runs/x/pretrain",
        "data": "glue",
        "matrix": {"task": ["sst2", "rte"], "seed": [1, 2, 3]},
    },
    "evaluate": {"checkpoint": "finetune"},
}


def nodes(**ensemble: Any) -> dict[str, dict[str, str | None]]:
    """Inputs of the nodes of the section `evaluate@ensemble`, by node."""
    config = RunConfig({**RUN, "evaluate@ensemble": ensemble}, "toy")
    return {
        name: {key: origin.node for key, origin in node.inputs.items()}
        for name, node in config.nodes.items()
        if node.section == "evaluate@ensemble"
    }


def test_a_pattern_names_all_seeds_and_a_matrix_one_ensemble_a_task() -> None:
    seeds = {f"checkpoint/sst2-{seed}": f"finetune@sst2-{seed}" for seed in (1, 2, 3)}
    assert nodes(checkpoint=list(seeds.values())) == {"evaluate@ensemble": seeds}
    assert nodes(checkpoint="finetune@sst2-*") == {"evaluate@ensemble": seeds}
    by_task = nodes(checkpoint="finetune@{task}-*", matrix={"task": ["sst2", "rte"]})
    assert by_task["evaluate@ensemble-sst2"] == seeds
    assert set(by_task["evaluate@ensemble-rte"].values()) == {
        f"finetune@rte-{seed}" for seed in (1, 2, 3)
    }
    mixed = nodes(checkpoint=["finetune@sst2-*", "old=runs/y/finetune@sst2-9"])
    assert mixed == {"evaluate@ensemble": {**seeds, "checkpoint/old": None}}
    assert nodes(checkpoint="finetune@sst2-1*") == {
        "evaluate@ensemble": {"checkpoint": "finetune@sst2-1"}
    }
    each = RunConfig(RUN, "toy").nodes  # a section's name still makes a node for each instance
    assert sum(node.stage == "evaluate" for node in each.values()) == 6


def test_a_pattern_that_matches_nothing_is_told_and_files_that_are_missing_leave_it_out() -> None:
    with pytest.raises(UsageError, match=r"'finetune@mnli-\*'.* matches no node"):
        nodes(checkpoint="finetune@mnli-*")
    with pytest.raises(UsageError, match="it takes one of finetune"):
        nodes(checkpoint="evaluate@sst2-*")
    partly = {**RUN["finetune"], "when": "available"}
    config = RunConfig(
        {**RUN, "corpus": {"sources": [{"kind": "books", "path": "books"}]}, "finetune": partly}
        | {"evaluate@ensemble": {"checkpoint": "finetune@sst2-*"}},
        "toy",
    )
    assert config.left_out["evaluate@ensemble"] == "needs finetune@sst2-*, which is left out"
