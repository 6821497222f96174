"""Fine-tuning and evaluation as stages: what they write, that it repeats to the bit, and that they agree."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch

from model import checkpoint
from model.tasks import finetune
from model.tasks.evaluate_config import EvaluateConfig
from model.tasks.evaluate_stage import STAGE as EVALUATE
from model.tasks.finetune_config import FinetuneConfig
from model.tasks.finetune_stage import STAGE as FINETUNE
from model.tasks.heads import new_classifier
from model.tasks.predictions import read_predictions
from pipeline.core import artifact
from pipeline.core.errors import ClozeError, DataError, UsageError
from pipeline.core.execute import execute
from pipeline.core.execution import Execution

EXECUTION = Execution(device="cpu", threads=1)


def _config(data, **values):
    defaults = {"epochs": 8, "batch_size": 16, "learning_rate": 3e-3, "max_length": 32, "precision": "fp32", "seed": 3}
    return FinetuneConfig(data=str(data), **{**defaults, **values})


def _finetune(config, pretrained, out, **inputs):
    given = {"pretrain": pretrained, **inputs} if pretrained else inputs
    return execute(FINETUNE, config, given, str(out), execution=EXECUTION)


def _evaluate(checkpoint_path, out, **values):
    config = EvaluateConfig(precision="fp32", **values)
    return execute(EVALUATE, config, {"finetune": str(checkpoint_path)}, str(out), execution=EXECUTION)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, pretrained, sentiment):
    out = tmp_path_factory.mktemp("tuned") / "sst2"
    return out, _finetune(_config(sentiment), pretrained, out)


def test_it_learns_and_says_so(tuned, sentiment):
    out, result = tuned
    metrics = result.as_json()["metrics"]
    assert list(metrics) == ["accuracy", "majority", "from_scratch"]
    assert metrics["accuracy"] > 0.95 > 0.75 > metrics["majority"] >= 0.5
    assert artifact.verify(str(out)).ok
    counters = result.manifest.counters
    assert counters["kept/train"] == counters["read/train"] == 240
    assert result.manifest.parents.keys() == {"pretrain", "data"}
    history = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in history] == list(range(1, 121))
    assert [line["step"] for line in history if "dev_accuracy" in line] == [15 * epoch for epoch in range(1, 9)]
    assert history[-1]["dev_accuracy"] == metrics["accuracy"]
    assert abs(history[0]["loss"] - math.log(2)) < 0.1
    assert history[-1]["loss"] < 0.3
    assert json.loads((out / "metrics.json").read_text())["metrics"] == metrics


def test_the_checkpoint_says_what_its_outputs_mean(tuned):
    out, result = tuned
    loaded = checkpoint.load(str(out))
    assert loaded.path == str(out / result.as_json()["checkpoint"])
    assert loaded.heads == {"classifier": {"num_labels": 2}}
    task = {"name": "sst2", "labels": ["0", "1"], "max_length": 32, "metric": "accuracy", "limit_per_class": None}
    assert loaded.task == task
    assert loaded.state["classifier.weight"].shape == (2, 32)
    assert loaded.step == 8 * 15
    assert not any(name.startswith(("masked_lm", "pair")) for name in loaded.state)


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(tuned, pretrained, sentiment, tmp_path):
    again = _finetune(_config(sentiment), pretrained, tmp_path / "again")
    assert again.manifest.content_sha256 == tuned[1].manifest.content_sha256
    other = _finetune(_config(sentiment, seed=4, baselines=False), pretrained, tmp_path / "other")
    ours, theirs = (checkpoint.load(str(path)).state["classifier.weight"] for path in (tuned[0], tmp_path / "other"))
    assert not torch.equal(ours, theirs)
    assert list(other.as_json()["metrics"]) == ["accuracy"]


def test_evaluation_repeats_the_dev_score_exactly(tuned, sentiment, tmp_path):
    out, finetuned = tuned
    result = _evaluate(out, tmp_path / "eval", data=str(sentiment)).as_json()
    assert result["metrics"]["accuracy"] == finetuned.as_json()["metrics"]["accuracy"]
    assert result["examples"] == 70
    assert (tmp_path / "eval" / "predictions.tsv").read_bytes() == (out / "predictions.tsv").read_bytes()
    rows = read_predictions(str(tmp_path / "eval" / "predictions.tsv"))
    assert list(rows[0]) == ["index", "text", "label", "prediction", "score"]
    assert [int(row["index"]) for row in rows] == list(range(70))
    assert sum(row["label"] == row["prediction"] for row in rows) / 70 == result["metrics"]["accuracy"]
    assert all(0.5 <= float(row["score"]) <= 1 for row in rows)
    content = json.loads((tmp_path / "eval" / "metrics.json").read_text())
    matrix = content["confusion"]["rows_true"]
    assert sum(map(sum, matrix)) == 70
    assert (matrix[0][0] + matrix[1][1]) / 70 == result["metrics"]["accuracy"]
    low, high = result["interval"]["accuracy"]
    assert low <= result["metrics"]["accuracy"] <= high


def test_a_split_without_labels_gets_predictions_and_no_score(tuned, sentiment, tmp_path):
    result = _evaluate(tuned[0] / "checkpoint", tmp_path / "eval", data=str(sentiment), split="test").as_json()
    assert result["metrics"] == {}
    assert result["examples"] == 9
    rows = read_predictions(str(tmp_path / "eval" / "predictions.tsv"))
    assert {row["label"] for row in rows} == {""}
    assert {row["prediction"] for row in rows} <= {"0", "1"}


def test_truncation_is_counted(pretrained, sentiment, tmp_path):
    result = _finetune(_config(sentiment, max_length=6, epochs=1, baselines=False), pretrained, tmp_path / "out")
    longer = sum(len(line.split("\t")[0].split()) > 4 for line in (sentiment / "train.tsv").read_text().splitlines()[1:])
    assert result.manifest.counters["truncated/train"] == longer > 0


def test_from_scratch_takes_the_shape_and_not_the_weights(tuned, pretrained, sentiment, tmp_path, vocab_file):
    result = _finetune(_config(sentiment, from_scratch=True), pretrained, tmp_path / "same")
    assert list(result.as_json()["metrics"]) == ["accuracy", "majority"]
    assert result.as_json()["metrics"]["accuracy"] == tuned[1].as_json()["metrics"]["from_scratch"]
    config = _config(sentiment, from_scratch=True, model="bert-tiny", epochs=1)
    _finetune(config, None, tmp_path / "preset", vocab=vocab_file)
    assert checkpoint.load(str(tmp_path / "preset")).model.hidden_size == 128
    with pytest.raises(UsageError, match=r"needs vocab \(found none\)"):
        _finetune(config, None, tmp_path / "no-vocab")
    with pytest.raises(UsageError, match="needs a checkpoint"):
        _finetune(_config(sentiment), None, tmp_path / "nothing")


def test_a_killed_try_leaves_nothing_finished_and_the_next_one_the_same_bytes(
    tuned, pretrained, sentiment, tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(finetune, "write_predictions", die)
        with pytest.raises(Killed):
            _finetune(_config(sentiment), pretrained, out)
    assert (out / "checkpoint").is_dir()
    assert not artifact.is_artifact(str(out))
    (out / "checkpoint" / "left.bin").write_bytes(b"from the killed try")
    result = _finetune(_config(sentiment), pretrained, out)
    assert result.manifest.content_sha256 == tuned[1].manifest.content_sha256


def test_mistakes_are_told_in_one_sentence(tuned, pretrained, sentiment, tmp_path):
    with pytest.raises(UsageError, match=r"was pretrained, not fine-tuned .* run `cloze finetune`"):
        _evaluate(pretrained, tmp_path / "a", data=str(sentiment))
    with pytest.raises(
        UsageError, match=r"max_length \(64\) exceeds the model's max_position_embeddings \(32\); use 32 or less"
    ):
        _finetune(_config(sentiment, max_length=64), pretrained, tmp_path / "b")
    with pytest.raises(UsageError, match="task sst2 needs data"):
        _finetune(FinetuneConfig(max_length=32), pretrained, tmp_path / "c")
    with pytest.raises(UsageError, match="task package needs corpus"):
        _finetune(FinetuneConfig(task="package", max_length=32), pretrained, tmp_path / "c")
    with pytest.raises(DataError, match=r"nowhere does not exist"):
        _finetune(_config(tmp_path / "nowhere"), pretrained, tmp_path / "d")
    with pytest.raises(DataError):
        _finetune(_config(sentiment), str(sentiment), tmp_path / "e")
    with pytest.raises(ClozeError, match=r"10 steps in a row .* lower learning_rate"):
        _finetune(_config(sentiment, learning_rate=1e30, clip=1e30), pretrained, tmp_path / "f")
    assert not any(artifact.is_artifact(str(tmp_path / name)) for name in "abcdef")


def test_training_moves_every_part_and_leaves_the_checkpoint_alone(pretrained, shape):
    loaded = checkpoint.load(pretrained)
    before = {name: tensor.clone() for name, tensor in loaded.state.items()}
    model = new_classifier(shape, loaded.state, 2, None, seed=1)
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], loaded.state[name]) for name in before)
    random = new_classifier(shape, None, 2, None, seed=1)
    fresh = new_classifier(shape, loaded.state, 2, None, seed=1)
    assert torch.equal(fresh.classifier.weight, random.classifier.weight)
    name = "encoder.embeddings.word.weight"
    assert torch.equal(fresh.state_dict()[name], before[name])
    assert not torch.equal(random.state_dict()[name], before[name])


def test_the_command_line_can_import_the_stages_without_torch():
    program = (
        "import sys, model.tasks.finetune_stage, model.tasks.evaluate_stage;"
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'tokenizers', 'apache_beam') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"
