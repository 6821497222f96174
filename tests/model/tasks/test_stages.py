"""Fine-tuning and evaluation as stages: what they write, that it repeats to the bit, and that they
agree.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch

from cloze.core.artifacts import artifact
from cloze.core.errors import ClozeError, DataError, StoppedError, UsageError
from cloze.core.storage import read_tsv
from cloze.model import checkpoint
from cloze.model.tasks.finetune import run
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.table import load_task
from cloze.model.train.plan.estimates import encoder_flops_per_token
from tests.model.tasks.stages import Listener, evaluate, finetune, settings
from tests.slices import few

EPOCHS = 5
STEPS = 15 * EPOCHS  # of `settings` on `sentiment`


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, pretrained, sentiment):
    out, listener = tmp_path_factory.mktemp("tuned") / "sst2", Listener()
    return out, finetune(settings(sentiment), pretrained, out, report=listener), listener


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_learns_and_says_so(tuned, sentiment):
    out, result, _ = tuned
    metrics = result.as_json()["metrics"]
    assert list(metrics) == ["accuracy", "majority", "from_scratch"]
    assert metrics["accuracy"] > 0.95 > 0.75 > metrics["majority"] >= 0.5
    assert artifact.verify(str(out)).ok
    counters = result.manifest.counters
    assert counters["kept/train"] == counters["read/train"] == 240
    assert result.manifest.parents.keys() == {"checkpoint", "data"}
    assert json.loads((out / "metrics.json").read_text())["metrics"] == metrics


def test_its_log_lines_say_how_both_trainings_went(tuned):
    out, result, listener = tuned
    metrics = result.as_json()["metrics"]
    for name, score in (
        ("metrics.jsonl", metrics["accuracy"]),
        ("from_scratch.jsonl", metrics["from_scratch"]),
    ):
        lines = _lines(out / name)
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        assert [line["step"] for line in lines if "dev_accuracy" in line] == [
            15 * epoch for epoch in range(1, EPOCHS + 1)
        ]
        assert lines[-1]["dev_accuracy"] == score
        assert lines[0]["loss"] == pytest.approx(math.log(2), rel=0.05)
    assert [line["step"] for line in listener.lines] == list(range(1, 2 * STEPS + 1))
    assert listener.lines[STEPS - 1] == _lines(out / "metrics.jsonl")[-1]
    assert listener.lines[-1]["from_scratch_dev_accuracy"] == metrics["from_scratch"]
    assert listener.done[-1] == (2 * STEPS, 2 * STEPS)
    best = max(_lines(out / "metrics.jsonl"), key=lambda line: line.get("dev_accuracy", 0.0))
    assert result.as_json()["best"] == {"step": best["step"], "dev_accuracy": best["dev_accuracy"]}


def test_the_checkpoint_says_what_its_outputs_mean(tuned):
    out, result, _ = tuned
    loaded = checkpoint.load(str(out))
    assert loaded.path == str(out / result.as_json()["checkpoint"])
    assert loaded.heads == {"classifier": {"num_labels": 2}}
    task = {
        "name": "sst2",
        "options": {},
        "labels": ["0", "1"],
        "pairs": False,
        "max_length": 32,
        "limit_per_class": None,
    }
    assert loaded.task == task
    assert loaded.state["classifier.weight"].shape == (2, 32)
    assert loaded.step == STEPS
    assert not any(name.startswith(("masked_lm", "pair")) for name in loaded.state)
    assert not (out / "checkpoints").exists()


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(
    tuned, pretrained, sentiment, tmp_path
):
    again = finetune(settings(sentiment), pretrained, tmp_path / "again")
    assert again.manifest.content_sha256 == tuned[1].manifest.content_sha256
    other = finetune(settings(sentiment, seed=4, baselines=False), pretrained, tmp_path / "other")
    ours, theirs = (
        checkpoint.load(str(path)).state["classifier.weight"]
        for path in (tuned[0], tmp_path / "other")
    )
    assert not torch.equal(ours, theirs)
    assert list(other.as_json()["metrics"]) == ["accuracy"]


def test_evaluation_repeats_the_dev_score_exactly(tuned, sentiment, tmp_path):
    out, finetuned, _ = tuned
    result = evaluate(out, tmp_path / "eval", data=str(sentiment)).as_json()
    assert result["metrics"]["accuracy"] == finetuned.as_json()["metrics"]["accuracy"]
    assert result["examples"] == 70
    assert (tmp_path / "eval" / "predictions.tsv").read_bytes() == (
        out / "predictions.tsv"
    ).read_bytes()
    rows = read_tsv(str(tmp_path / "eval" / "predictions.tsv"))
    assert list(rows[0]) == ["index", "text", "label", "prediction", "score"]
    assert [int(row["index"]) for row in rows] == list(range(70))
    assert (
        sum(row["label"] == row["prediction"] for row in rows) / 70 == result["metrics"]["accuracy"]
    )
    assert all(0.5 <= float(row["score"]) <= 1 for row in rows)
    content = json.loads((tmp_path / "eval" / "metrics.json").read_text())
    matrix = content["confusion"]["rows_true"]
    assert sum(map(sum, matrix)) == 70
    assert (matrix[0][0] + matrix[1][1]) / 70 == result["metrics"]["accuracy"]
    low, high = result["interval"]["accuracy"]
    assert low <= result["metrics"]["accuracy"] <= high


def test_an_evaluation_measures_inference_on_this_machine(tuned, sentiment, tmp_path):
    out, _, _ = tuned
    result = evaluate(out, tmp_path / "eval", data=str(sentiment)).as_json()
    cost = result["inference"]
    weights = checkpoint.load(str(out)).state.values()
    assert cost["parameters"] == sum(tensor.numel() for tensor in weights)
    assert 0 < cost["latency_ms"] <= cost["latency_p99_ms"]
    assert 3 <= cost["latency_sequences"] <= 50
    assert cost["examples_per_second"] > 0
    assert cost["memory_bytes"] > 1e8
    assert (cost["device"], cost["threads"], cost["precision"]) == ("cpu", 1, "fp32")
    # times are no part of the files, which stay the same
    assert "inference" not in json.loads((tmp_path / "eval" / "metrics.json").read_text())


def test_a_fine_tuning_says_what_it_cost(tuned):
    out, finetuned, _ = tuned
    summary = finetuned.as_json()
    model = checkpoint.load(str(out)).model
    passes = summary["epochs"] * finetuned.manifest.tokens
    least, most = (passes * encoder_flops_per_token(model, length) for length in (2, 32))
    assert least < summary["training_flops"] < most
    assert summary["cpu_hours"] > 0
    assert "words_seen" not in summary


def test_a_split_without_labels_gets_predictions_and_no_score(tuned, sentiment, tmp_path):
    result = evaluate(
        tuned[0] / "checkpoint", tmp_path / "eval", data=str(sentiment), split="test"
    ).as_json()
    assert result["metrics"] == {}
    assert result["examples"] == 9
    rows = read_tsv(str(tmp_path / "eval" / "predictions.tsv"))
    assert {row["label"] for row in rows} == {""}
    assert {row["prediction"] for row in rows} <= {"0", "1"}


def test_a_split_without_examples_is_refused(tuned, sentiment, tmp_path):
    with pytest.raises(DataError, match=r"dev.tsv has no row with '2', but with '1', '0'"):
        options = {"where": {"label": "2"}}
        evaluate(tuned[0], tmp_path / "eval", data=str(sentiment), options=options)


def test_truncation_is_counted(pretrained, sentiment, tmp_path):
    result = finetune(
        settings(sentiment, max_length=6, epochs=1, baselines=False), pretrained, tmp_path / "out"
    )
    longer = sum(
        len(line.split("\t")[0].split()) > 4
        for line in (sentiment / "train.tsv").read_text().splitlines()[1:]
    )
    assert result.manifest.counters["truncated/train"] == longer > 0


def test_from_scratch_takes_the_shape_and_not_the_weights(
    tuned, pretrained, sentiment, tmp_path, vocab_file
):
    result = finetune(settings(sentiment, from_scratch=True), pretrained, tmp_path / "same")
    assert list(result.as_json()["metrics"]) == ["accuracy", "majority"]
    assert result.as_json()["metrics"]["accuracy"] == tuned[1].as_json()["metrics"]["from_scratch"]
    config = settings(sentiment, from_scratch=True, model="bert-tiny", epochs=1)
    finetune(config, None, tmp_path / "preset", vocab=vocab_file)
    assert checkpoint.load(str(tmp_path / "preset")).model.hidden_size == 128
    with pytest.raises(UsageError, match=r"needs vocab \(found none\)"):
        finetune(config, None, tmp_path / "no-vocab")
    with pytest.raises(UsageError, match="needs a checkpoint"):
        finetune(settings(sentiment), None, tmp_path / "nothing")


def test_a_killed_try_leaves_nothing_finished_and_the_next_one_the_same_bytes(
    tuned, pretrained, sentiment, tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(run, "_save", die)
        with pytest.raises(Killed):
            finetune(settings(sentiment), pretrained, out)
    assert not artifact.is_artifact(str(out))
    (out / "checkpoint").mkdir()
    (out / "checkpoint" / "left.bin").write_bytes(b"from a killed try")
    result = finetune(settings(sentiment), pretrained, out)
    assert result.manifest.content_sha256 == tuned[1].manifest.content_sha256


def test_mistakes_are_told_in_one_sentence(tuned, pretrained, sentiment, tmp_path):
    with pytest.raises(UsageError, match=r"was pretrained, not fine-tuned .* run `cloze finetune`"):
        evaluate(pretrained, tmp_path / "a", data=str(sentiment))
    with pytest.raises(
        UsageError,
        match=(
            r"max_length \(64\) exceeds the model's max_position_embeddings \(32\); use 32 or less"
        ),
    ):
        finetune(settings(sentiment, max_length=64), pretrained, tmp_path / "b")
    with pytest.raises(UsageError, match="task sst2 needs data"):
        finetune(FinetuneConfig(max_length=32), pretrained, tmp_path / "c")
    with pytest.raises(UsageError, match="task package needs corpus"):
        finetune(FinetuneConfig(task="package", max_length=32), pretrained, tmp_path / "c")
    with pytest.raises(DataError, match=r"nowhere does not exist"):
        finetune(settings(tmp_path / "nowhere"), pretrained, tmp_path / "d")
    with pytest.raises(DataError):
        finetune(settings(sentiment), str(sentiment), tmp_path / "e")
    with pytest.raises(ClozeError, match=r"steps in a row .* lower learning_rate \(1e\+30\)"):
        finetune(
            settings(sentiment, learning_rate=1e30, grad_clip=1e30), pretrained, tmp_path / "f"
        )
    assert not any(artifact.is_artifact(str(tmp_path / name)) for name in "abcdef")


@pytest.mark.parametrize(
    "stop_at", few([7, STEPS // EPOCHS, STEPS, STEPS + STEPS // 3], 7, STEPS + STEPS // 3)
)
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    tuned, pretrained, sentiment, tmp_path, stop_at
):
    """Within an epoch, at a score on the way, after the last step, and in the baseline."""
    out, listener = tmp_path / "out", Listener(stop_at)
    with pytest.raises(StoppedError, match="run again to continue"):
        finetune(
            settings(sentiment), pretrained, out, report=listener, execution={"checkpoint_every": 5}
        )
    assert not artifact.is_artifact(str(out))
    assert (
        checkpoint.load(str(out)).task["name"] == "sst2"
    )  # an unfinished artifact's newest checkpoint is one to use
    again = Listener()
    result = finetune(settings(sentiment), pretrained, out, report=again)
    assert result.manifest.content_sha256 == tuned[1].manifest.content_sha256
    assert result.manifest.counters == tuned[1].manifest.counters
    assert sorted({line["step"] for line in listener.lines + again.lines}) == list(
        range(1, 2 * STEPS + 1)
    )
    assert [line["step"] for line in _lines(out / "metrics.jsonl")] == list(range(1, STEPS + 1))


def test_a_dev_split_without_labels_is_refused_before_training(pretrained, sentiment, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.tsv").write_bytes((sentiment / "train.tsv").read_bytes())
    (tmp_path / "data" / "dev.tsv").write_text("sentence\ngood\n")
    with pytest.raises(DataError, match=r"dev\.tsv, line 1: no column 'label'"):
        finetune(settings(tmp_path / "data"), pretrained, tmp_path / "out")


def test_training_moves_every_part_and_leaves_the_checkpoint_alone(pretrained, shape):
    loaded, task, meaning = checkpoint.load(pretrained), load_task("sst2"), {"labels": ["0", "1"]}
    before = {name: tensor.clone() for name, tensor in loaded.state.items()}
    model = new_network(task, shape, loaded.state, meaning, None, seed=1)
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], loaded.state[name]) for name in before)
    random = new_network(task, shape, None, meaning, None, seed=1)
    fresh = new_network(task, shape, loaded.state, meaning, None, seed=1)
    assert torch.equal(fresh.classifier.weight, random.classifier.weight)
    name = "encoder.embeddings.word.weight"
    assert torch.equal(fresh.state_dict()[name], before[name])
    assert not torch.equal(random.state_dict()[name], before[name])


def test_the_command_line_can_import_the_stages_without_torch():
    program = (
        "import sys, cloze.model.tasks.finetune.stage, cloze.model.tasks.evaluate.stage;"
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'tokenizers', 'apache_beam') if m in "
        "sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
