"""Several tasks at once: one encoder, a head each, batches of one task each, and an evaluation of
any of them.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import StoppedError, UsageError
from cloze.core.ragged import I64
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.storage import read_tsv
from cloze.labs.inside.stages import PRUNE, PruneConfig
from cloze.model import checkpoint
from cloze.model.tasks.heads import new_network, trained_network
from cloze.model.tasks.kinds.multitask import select_task
from cloze.model.tasks.source import MultiTaskSource, shares, source_of
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import encoded
from tests.glue_files import write_glue
from tests.model.tasks.stages import Listener, evaluate, finetune, settings
from tests.parity.pretrained import new_tokenizer
from tests.parity.test_finetune_classification import write_texts
from tests.parity.test_finetune_spans import write_questions
from tests.parity.test_finetune_tags import write_columns
from tests.tiny_models import tiny_config

SIZES = {"mrpc": 40, "stsb": 12, "rte": 12}


class Grouped:
    """Samples of three groups, of which a batch says its numbers."""

    def __init__(self, *sizes: int) -> None:
        ends = np.cumsum(sizes)
        self.groups: list[I64] = [
            np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)
        ]
        self.lengths = np.arange(5, 5 + int(ends[-1]))
        self.truncated = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, chosen: Any, layout: str = "rows") -> dict[str, Any]:
        return {"input_ids": torch.as_tensor(np.array(chosen))}


def steps(source: Any, first: int, last: int) -> list[list[int]]:
    return [source.row_ids(step)["rows"] for step in range(first, last)]


def test_by_size_an_epoch_is_every_sample_once_and_a_step_one_task_s() -> None:
    samples = Grouped(40, 10, 3)
    source = source_of(samples, batch_size=4, seed=1, micro_batch=4)
    assert isinstance(source, MultiTaskSource)
    assert source.steps_per_epoch == 10 + 3 + 1
    for epoch in range(2):
        rows = steps(source, 14 * epoch, 14 * epoch + 14)
        assert sorted(row for step in rows for row in step) == list(range(53))
        assert all(
            len({int(np.searchsorted([40, 50, 53], row, side="right")) for row in step}) == 1
            for step in rows
        )
    assert steps(source, 0, 14) != steps(source, 14, 28)
    assert [source.samples(step) for step in (0, 14, 28)] == [0, 53, 106]
    assert source.samples(5) == sum(len(step) for step in steps(source, 0, 5))


@pytest.mark.parametrize(
    ("power", "expected"), [(1.0, [80, 18, 2]), (0.5, [58, 30, 12]), (0.0, [34, 33, 33])]
)
def test_shares_go_with_a_power_of_the_size(power: float, expected: list[int]) -> None:
    found = shares([8100, 1800, 200], power, 100)
    assert sum(found) == 100
    assert all(abs(share - wanted) <= 4 for share, wanted in zip(found, expected, strict=True))
    assert all(share >= 1 for share in shares([10**6, 1, 1], 1.0, 20))


def test_with_a_lower_power_a_task_goes_on_where_it_stood() -> None:
    source = source_of(Grouped(40, 4), batch_size=4, seed=3, micro_batch=4, power=0.0)
    rows = steps(source, 0, 22)  # two epochs of 11 steps: 6 or 5 of each task
    large = [row for step in rows for row in step if row < 40]
    assert Counter(large).most_common(1)[0][1] <= 2
    assert (
        len(set(large)) == 40
    )  # the second epoch goes on, so all are seen before one is seen again
    assert Counter(row for step in rows for row in step if row >= 40)[40] >= 10


def test_all_ranks_see_the_same_step() -> None:
    source = source_of(Grouped(40, 10, 3), batch_size=4, seed=1, micro_batch=2)
    for step in range(14):
        both = [
            row
            for rank in (0, 1)
            for item in source.step_batches(step, rank, 2).micro_batches
            for row in item.batch["input_ids"].tolist()
        ]
        assert sorted(set(both) - {0}) == sorted(set(source.row_ids(step)["rows"]) - {0})


CONFIG: dict[str, Any] = {
    "task": "multitask",
    "tasks": {"mrpc": {}, "stsb": {}, "second": {"task": "rte"}},
    "epochs": 2,
    "global_batch": 4,
    "baselines": False,
}


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_glue(tmp_path_factory.mktemp("glue"), train=16, dev=6)
    (directory / "MRPC" / "fetched.json").write_text('{\n "licence": "CC-BY-4.0"\n}')
    return directory


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, pretrained: str, glue: Path) -> BuildResult:
    return finetune(
        settings(glue, **CONFIG), pretrained, tmp_path_factory.mktemp("multitask") / "out"
    )


def test_the_licence_of_each_tasks_data_is_recorded(trained: BuildResult) -> None:
    assert trained.manifest.summary["data_licences"] == ["CC-BY-4.0", "unknown", "unknown"]


def test_the_score_is_the_mean_of_the_tasks_scores(trained: BuildResult) -> None:
    metrics = trained.manifest.summary["metrics"]
    assert trained.manifest.summary["metric"] == "mean"
    assert metrics["mean"] == pytest.approx(
        (metrics["mrpc_f1"] + metrics["stsb_pearson"] + metrics["second_accuracy"]) / 3
    )
    assert trained.manifest.summary["steps"] == 2 * 3 * 4


@pytest.mark.parametrize(
    ("name", "metric"), [("mrpc", "f1"), ("stsb", "pearson"), ("second", "accuracy")]
)
def test_each_task_of_the_checkpoint_can_be_evaluated(
    name: str, metric: str, trained: BuildResult, glue: Path, tmp_path: Path
) -> None:
    found = evaluate(trained.artifact, tmp_path / "out", data=str(glue), task=name)
    assert found.manifest.summary["metrics"][metric] == pytest.approx(
        trained.manifest.summary["metrics"][f"{name}_{metric}"], abs=1e-6
    )
    own = read_tsv(f"{trained.artifact}/predictions/{name}/predictions.tsv")
    assert [row["prediction"] for row in read_tsv(f"{found.artifact}/predictions.tsv")] == [
        row["prediction"] for row in own
    ]


def test_the_checkpoint_holds_all_heads_and_each_has_learned(
    trained: BuildResult, pretrained: str
) -> None:
    loaded = checkpoint.load(trained.artifact)
    assert set(loaded.heads) == {"mrpc", "stsb", "second"}
    heads = {name: tensor for name, tensor in loaded.state.items() if name.startswith("heads.")}
    assert {name.split(".")[1] for name in heads} == {"mrpc", "stsb", "second"}
    assert all(
        float(tensor.abs().max()) > 0 for name, tensor in heads.items() if name.endswith("bias")
    )  # they begin at 0
    one, state = select_task(loaded.task or {}, loaded.state, "second", "here")
    assert one["name"] == "rte"
    assert "classifier.weight" in state
    assert not any(name.startswith("heads.") for name in state)


def test_a_stopped_training_goes_on_exactly(
    trained: BuildResult, tmp_path: Path, pretrained: str, glue: Path
) -> None:
    config = settings(glue, **CONFIG)
    with pytest.raises(StoppedError):
        finetune(config, pretrained, tmp_path / "out", report=Listener(stop_at=9))
    found = checkpoint.load(finetune(config, pretrained, tmp_path / "out").artifact).state
    whole = checkpoint.load(trained.artifact).state
    assert all((whole[name] == found[name]).all() for name in whole)


def test_a_task_that_is_not_there_is_told(trained: BuildResult, glue: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="several tasks; name one of them with task: mrpc, second, stsb"
    ):
        evaluate(trained.artifact, tmp_path / "a", data=str(glue))
    with pytest.raises(UsageError, match="has no task 'mrcp'; did you mean 'mrpc'"):
        evaluate(trained.artifact, tmp_path / "b", data=str(glue), task="mrcp")


def test_heads_are_pruned_by_all_tasks_together(
    trained: BuildResult, glue: Path, tmp_path: Path
) -> None:
    config = PruneConfig(data=str(glue), keep_heads=0.5)
    pruned = execute(PRUNE, config, {"checkpoint": trained.artifact}, str(tmp_path / "out"))
    before, expected = (
        pruned.manifest.summary["metrics_before"],
        trained.manifest.summary["metrics"],
    )
    assert before.keys() == expected.keys()
    # All predictions of STS-B lie within 2e-4, and other batches round otherwise: ranks are left out.
    for name in expected.keys() - {"stsb_spearman"}:
        assert before[name] == pytest.approx(expected[name], abs=1e-3), name
    found = evaluate(pruned.artifact, tmp_path / "second", data=str(glue), task="second")
    assert found.manifest.summary["metrics"]["accuracy"] == pytest.approx(
        pruned.manifest.summary["metrics"]["second_accuracy"], abs=1e-6
    )


def test_the_order_of_the_tasks_and_their_options_name_the_result(glue: Path) -> None:
    def of(**tasks: Any) -> str:
        return json.dumps(settings(glue, task="multitask", tasks=tasks).external_fingerprints())

    assert of(mrpc={}, rte={}) != of(rte={}, mrpc={})
    assert of(mrpc={}, rte={}) != of(mrpc={}, rte={"options": {"labels": ["a", "b"]}})
    assert of(mrpc={}) == of(mrpc={"data": str(glue / "MRPC")})


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Tasks of four kinds: of a pooled output, of every position, of windows and of vectors."""
    base = tmp_path_factory.mktemp("several")
    columns = {"text": "first", "pair": "second", "label": "class"}
    pairs = write_texts(base / "pairs", pairs=True)
    tags, questions = write_columns(base / "tags"), write_questions(base / "questions")
    return {
        "ranked": {"task": "squad-retrieval", "data": str(squad_v1(questions, base / "ranked"))},
        "pairs": {"task": "classification", "data": str(pairs), "options": {"columns": columns}},
        "tags": {"task": "tagging", "data": str(tags)},
        "answers": {"task": "squad2", "data": str(questions)},
    }


def squad_v1(source: Path, directory: Path) -> Path:
    directory.mkdir()
    for split in ("train", "dev"):
        (directory / f"{split}-v1.1.json").write_bytes((source / f"{split}.json").read_bytes())
    return directory


@pytest.mark.parametrize("family", ["bert", "roberta", "modern", "deberta"])
def test_each_task_of_any_kind_is_read_back_from_the_shared_checkpoint(
    family: str, several: dict[str, Any], tmp_path: Path
) -> None:
    task = load_task("multitask", {"tasks": several})
    meaning = task.metadata(task.read("", "train", None))
    config = tiny_config(family=family, max_position_embeddings=64)
    state = new_network(task, config, None, meaning, None, seed=1).state_dict()
    for name in several:
        own, kept = select_task({**meaning, "name": "multitask"}, state, name, "there")
        alone = load_task(str(own["name"]), own["options"])
        network = trained_network(alone, config, kept, own, "there")
        for parameter, tensor in network.state_dict().items():
            own_name = parameter if parameter in state else f"heads.{name}.{parameter}"
            assert tensor.equal(state[own_name])


def test_retrieval_among_several_tasks_does_not_depend_on_how_a_step_is_cut(
    several: dict[str, Any],
) -> None:
    """Negatives are those of the step, and every weight outside of the encoder has a gradient at
    each step.
    """
    task = load_task("multitask", {"tasks": several})
    examples = task.read("", "train", None)
    meaning = task.metadata(examples)
    pieces = new_tokenizer("wordpiece")
    config = tiny_config(vocab_size=pieces.vocab_size, max_position_embeddings=64)
    network = new_network(task, config, None, meaning, 0.0, seed=1)
    samples = encoded(task, examples, meaning, pieces, 64).samples
    whole, cut = (source_of(samples, batch_size=8, seed=1, micro_batch=size) for size in (8, 2))
    kinds: Counter[str] = Counter()
    for step in range(whole.steps_per_epoch):
        (first,) = (item.batch for item in whole.step_batches(step, 0, 1).micro_batches)
        kind = next(key for key in first if key.startswith("of "))
        kinds[kind] += 1
        if kinds[kind] > 2:
            continue
        totals = []
        for source in (whole, cut):
            network.zero_grad()
            batches = [item.batch for item in source.step_batches(step, 0, 1).micro_batches]
            losses = [task.loss(network(batch), batch).total for batch in batches]
            totals.append(float(torch.stack(losses).sum().detach()))
            losses[0].backward()
            own = [
                part.grad
                for name, part in network.named_parameters()
                if not name.startswith("encoder.")
            ]
            assert all(grad is not None for grad in own)
        assert totals[0] == pytest.approx(totals[1], rel=1e-5)
    assert set(kinds) == {f"of {name}" for name in several}
