"""Ways to fine-tune: rates by layer, stopping early with the best step's weights, from another
task's checkpoint, and what is hashed of the data.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cloze.core.errors import StoppedError
from cloze.core.stages.execute import BuildResult
from cloze.core.storage import read_tsv
from cloze.model import checkpoint
from cloze.model.tasks.cost import BYTES_A_PIECE, split_tokens
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.finetune.stage import STAGE, FinetuneConfig
from cloze.model.tasks.table import TASKS, load_task, max_length
from cloze.model.train.spec.schedules import Schedule
from tests.glue_files import write_glue
from tests.model.tasks.stages import Listener, evaluate, finetune, settings
from tests.slices import few

DECAYED = {"layer_decay": 0.5, "baselines": False}


def weights(result: BuildResult) -> dict[str, Any]:
    return checkpoint.load(result.artifact).state


def test_the_embeddings_move_least_and_a_stopped_training_goes_on_exactly(
    tmp_path: Path, pretrained: str, sentiment: Path
) -> None:
    config = settings(sentiment, epochs=1, **DECAYED)
    whole = finetune(config, pretrained, tmp_path / "whole")
    with pytest.raises(StoppedError):
        finetune(config, pretrained, tmp_path / "parts", report=Listener(stop_at=7))
    parts = finetune(config, pretrained, tmp_path / "parts")
    first, alike, plain = (
        weights(whole),
        weights(parts),
        weights(
            finetune(settings(sentiment, epochs=1, baselines=False), pretrained, tmp_path / "plain")
        ),
    )
    assert all((first[name] == alike[name]).all() for name in first)
    start = checkpoint.load(pretrained).state

    def moved(state: dict[str, Any], name: str) -> float:
        return float((state[name] - start[name]).abs().mean())

    embeddings = "encoder.embeddings.position.weight"
    assert moved(first, embeddings) < 0.5 * moved(plain, embeddings)
    quick = weights(
        finetune(
            settings(sentiment, epochs=1, baselines=False, embedding_lr_multiplier=4),
            pretrained,
            tmp_path / "quick",
        )
    )
    assert moved(quick, embeddings) > 2 * moved(plain, embeddings)
    matrix = "encoder.layers.0.feed_forward.up.weight"
    assert moved(quick, matrix) < 1.5 * moved(plain, matrix)


@pytest.mark.parametrize("optimizer", few(["adamw", "muon"], "muon"))
def test_layers_are_unfrozen_from_the_top_one_more_each_epoch(
    tmp_path: Path, pretrained: str, sentiment: Path, optimizer: str
) -> None:
    start = checkpoint.load(pretrained).state
    words, layer = "encoder.embeddings.word.weight", "encoder.layers.0.feed_forward.up.weight"
    norm = "encoder.layers.0.attention_norm.bias"
    more = {"unfreeze_layers": 1, "optimizer": optimizer, "baselines": False}
    for epochs, trained in ((1, set()), (2, {layer, norm}), (3, {words, layer, norm})):
        config = settings(sentiment, epochs=epochs, **more)
        state = weights(finetune(config, pretrained, tmp_path / f"{epochs}"))
        assert {
            name for name in (words, layer, norm) if not state[name].equal(start[name])
        } == trained
        assert not state["pooler.dense.weight"].equal(start["pooler.dense.weight"])
    with pytest.raises(StoppedError):  # in the second epoch
        finetune(config, pretrained, tmp_path / "parts", report=Listener(stop_at=20))
    assert weights(finetune(config, pretrained, tmp_path / "parts"))[words].equal(state[words])


def test_a_schedule_is_pretrainings_and_the_usual_one_is_linear(
    tmp_path: Path, pretrained: str, sentiment: Path
) -> None:
    rates = {}
    for name in ("linear", "cosine", "wsd"):
        log = Listener()
        config = settings(sentiment, epochs=2, schedule=name, baselines=False)
        finetune(config, pretrained, tmp_path / name, report=log)
        rates[name] = [line["learning_rate"] for line in log.lines]
        schedule = Schedule(name=name, warmup=3)
        assert rates[name] == [pytest.approx(5e-3 * schedule.factor(n, 30)) for n in range(30)]
    usual = settings(sentiment, epochs=2, baselines=False)
    assert STAGE.fingerprint(usual, {}) == STAGE.fingerprint(
        settings(sentiment, epochs=2, baselines=False, schedule="linear"), {}
    )
    with pytest.raises(ValidationError, match="no such schedule"):
        FinetuneConfig(schedule="cosinus")
    with pytest.raises(ValidationError, match="set warmup_share above 0"):
        FinetuneConfig(schedule="inverse-sqrt", warmup_share=0)
    with pytest.raises(ValidationError, match="not for a frozen encoder"):
        FinetuneConfig(unfreeze_layers=1, frozen="last")


PATIENT = {"epochs": 12, "patience": 2, "learning_rate": 1e-2, "baselines": False}


@pytest.fixture(scope="module")
def patient(
    tmp_path_factory: pytest.TempPathFactory, pretrained: str, sentiment: Path
) -> BuildResult:
    out = tmp_path_factory.mktemp("patient") / "out"
    return finetune(
        settings(sentiment, **PATIENT),
        pretrained,
        out,
        execution={"checkpoint_every": 5, "keep_checkpoints": 1},
    )


def test_patience_ends_training_and_the_best_step_is_what_is_saved_and_scored(
    patient: BuildResult, sentiment: Path, tmp_path: Path
) -> None:
    summary = patient.manifest.summary
    per_epoch = 15
    assert summary["steps"] == summary["best"]["step"] + 2 * per_epoch < 12 * per_epoch
    assert summary["kept"] == summary["best"]["step"]
    assert summary["metrics"]["accuracy"] == summary["best"]["dev_accuracy"]
    again = evaluate(patient.artifact, tmp_path / "again", data=str(sentiment))
    assert again.manifest.summary["metrics"]["accuracy"] == summary["best"]["dev_accuracy"]
    said = read_tsv(f"{patient.artifact}/predictions.tsv")
    assert said == read_tsv(f"{again.artifact}/predictions.tsv")


@pytest.mark.parametrize(
    "stop", few(["before the best", "after the best", "at the end"], "after the best")
)
def test_a_patient_training_that_is_stopped_ends_alike(
    stop: str, patient: BuildResult, tmp_path: Path, pretrained: str, sentiment: Path
) -> None:
    summary = patient.manifest.summary
    at = {
        "before the best": summary["best"]["step"] - 1,
        "after the best": summary["best"]["step"] + 4,
        "at the end": summary["steps"] - 1,
    }
    how = {"checkpoint_every": 5, "keep_checkpoints": 1}
    config = settings(sentiment, **PATIENT)
    with pytest.raises(StoppedError):
        finetune(
            config, pretrained, tmp_path / "out", report=Listener(stop_at=at[stop]), execution=how
        )
    found = finetune(config, pretrained, tmp_path / "out", execution=how)
    for key in ("steps", "kept", "best", "metrics"):
        assert found.manifest.summary[key] == summary[key]
    first, second = weights(patient), weights(found)
    assert all((first[name] == second[name]).all() for name in first)


def test_each_epoch_is_scored_where_scores_decide(
    tmp_path: Path, pretrained: str, sentiment: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(sentiment, data)
    header, *lines = (data / "dev.tsv").read_text(encoding="utf-8").splitlines()
    (data / "dev.tsv").write_text("\n".join([header, *(lines * 15)]) + "\n", encoding="utf-8")
    scored = {}
    for name, values in {
        "last": {},
        "best": {"select_checkpoint": "best"},
        "patient": {"patience": 5, "select_checkpoint": "last"},
    }.items():
        log = Listener()
        config = settings(data, epochs=3, baselines=False, **values)
        finetune(config, pretrained, tmp_path / name, report=log)
        scored[name] = [line["step"] for line in log.lines if "dev_accuracy" in line]
    assert scored == {"last": [45], "best": [15, 30, 45], "patient": [15, 30, 45]}


def test_the_best_can_be_kept_without_patience_and_the_last_with_it() -> None:
    assert [
        FinetuneConfig(select_checkpoint=keep, patience=patience).selects_best
        for keep, patience in [
            (None, None),
            ("best", None),
            ("last", None),
            (None, 1),
            ("last", 1),
        ]
    ] == [False, True, False, True, False]


def test_another_task_s_checkpoint_gives_its_encoder_and_not_its_head(
    tmp_path: Path, pretrained: str
) -> None:
    data = write_glue(tmp_path / "glue")
    quick = {"epochs": 1, "baselines": False}
    first = finetune(settings(data, task="mnli", **quick), pretrained, tmp_path / "mnli")
    second = finetune(
        settings(data, task="rte", learning_rate=1e-12, **quick), first.artifact, tmp_path / "rte"
    )
    before, after = weights(first), weights(second)
    assert before["classifier.weight"].shape[0] == 3
    assert after["classifier.weight"].shape[0] == 2
    kept = [name for name in before if name.startswith(("encoder.", "pooler."))]
    assert all((before[name] - after[name]).abs().max() < 1e-6 for name in kept)


def test_micro_batches_do_not_change_the_result(
    tmp_path: Path, pretrained: str, sentiment: Path
) -> None:
    loaded, still = checkpoint.load(pretrained), str(tmp_path / "still")
    shape = loaded.model.model_copy(
        update={"hidden_dropout": 0.0, "attention_dropout": 0.0}
    )  # each micro-batch draws its own
    checkpoint.save_weights(
        still, model=shape, state=loaded.state, tokenizer=loaded.tokenizer, heads=loaded.heads
    )
    checkpoint.finalize(still)
    config = settings(sentiment, epochs=1, baselines=False)
    whole = weights(finetune(config, still, tmp_path / "whole"))
    cut = weights(finetune(config, still, tmp_path / "cut", execution={"micro_batch": 5}))
    assert max(float((whole[name] - cut[name]).abs().max()) for name in whole) < 1e-4


def prints(path: Path, task: str, **values: Any) -> dict[str, str]:
    return FinetuneConfig(task=task, data=str(path), **values).external_fingerprints()


def test_only_what_the_task_reads_names_its_data(tmp_path: Path) -> None:
    data = write_glue(tmp_path / "glue")
    before = {task: prints(data, task) for task in ("rte", "mrpc", "mnli")}
    assert (
        prints(data / "RTE", "rte") == before["rte"]
    )  # the task's own directory, or the one above it
    (data / "RTE" / "dev.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n"
    )
    (data / "MRPC" / "test.tsv").unlink()
    (data / "MNLI" / "dev_mismatched.tsv").unlink()
    assert {task: prints(data, task) == was for task, was in before.items()} == {
        "rte": False,
        "mrpc": True,
        "mnli": True,
    }
    shutil.rmtree(data / "QQP")
    assert prints(data, "mrpc") == before["mrpc"]


def test_a_file_that_only_the_fine_tuning_names_counts_in_an_evaluation(tmp_path: Path) -> None:
    """The checkpoint's options may name other files for the split than the task's own."""
    data = write_glue(tmp_path / "glue")
    (data / "RTE" / "mine.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n"
    )
    config = EvaluateConfig(task="rte", data=str(data / "RTE"))
    before = config.external_fingerprints()
    assert config.external_fingerprints() == before
    (data / "RTE" / "mine.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n"
    )
    assert config.external_fingerprints() != before
    assert (
        EvaluateConfig(task="mnli", data=str(data), split="nonsense")
        .missing()
        .endswith("MNLI has no nonsense split")
    )


def test_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="tasks names several, task is sst2"):
        FinetuneConfig(tasks={"rte": {}})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="task multitask needs tasks"):
        FinetuneConfig(task="multitask")
    with pytest.raises(ValueError, match="tasks.package cannot be one of several"):
        FinetuneConfig(task="multitask", tasks={"package": {}})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"task \('nonsense'\) is unknown"):
        FinetuneConfig(task="multitask", tasks={"nonsense": {}})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="frozen .last. is for one task"):
        FinetuneConfig(task="multitask", tasks={"rte": {}}, frozen="last")  # type: ignore[dict-item]


@pytest.mark.parametrize("name", sorted(TASKS))
def test_estimates_know_how_long_a_task_s_sequences_are(name: str) -> None:
    task = load_task(name)
    assert max_length(name, task.options) == task.max_length


def test_estimates_read_the_task_s_own_files(tmp_path: Path) -> None:
    data = write_glue(tmp_path / "glue")

    def tokens(config: Any, split: str) -> float:
        return split_tokens(config.reads(), split, config.data, None) * BYTES_A_PIECE

    sizes = {
        task: (data / folder / "train.tsv").stat().st_size
        for task, folder in (("rte", "RTE"), ("mnli", "MNLI"))
    }
    assert tokens(FinetuneConfig(task="rte", data=str(data)), "train") == sizes["rte"]
    both = {"task": "multitask", "tasks": {"rte": {}, "mnli": {}}, "data": str(data)}
    assert tokens(FinetuneConfig.model_validate(both), "train") == sum(sizes.values())
    size = (data / "MNLI" / "test_mismatched.tsv").stat().st_size
    assert tokens(EvaluateConfig(task="mnli", data=str(data)), "test_mismatched") == size
