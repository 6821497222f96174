"""Text-to-text: an encoder-decoder learns to write, is scored by what it wrote, and is used."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.core.storage import read_tsv
from cloze.labs.seq2seq import stages as text_metrics
from cloze.labs.seq2seq.generate import Generate, generation_pipeline
from cloze.labs.seq2seq.stages import GenerateConfig
from cloze.model import checkpoint
from cloze.model.families.models import new_model
from cloze.model.families.registry import config_class
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.tasks.evaluate.stage import STAGE as EVALUATE
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.finetune.stage import STAGE as FINETUNE
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.tasks.table import load_task
from cloze.model.use.fill_mask import FillMaskPipeline
from cloze.model.use.request import request_of
from cloze.model.use.scorer import SentenceScorer

CPU = Execution(device="cpu", threads=1)
LIKE = dict(
    zip(("good", "lovely", "warm", "bright"), ("bad", "awful", "cold", "dull"), strict=True)
)
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}


@pytest.fixture(scope="module")
def opposites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of texts: each good word becomes its opposite."""
    directory = tmp_path_factory.mktemp("opposites")
    draw = random.Random(3)
    for split, count in (("train", 320), ("dev", 40)):
        lines = []
        for _ in range(count):
            words = draw.choices(sorted(LIKE), k=draw.randint(1, 3))
            answer = " ".join(LIKE[word] for word in words)
            lines.append(json.dumps({"source": " ".join(words), "target": answer}))
        (directory / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


OPTIONS = {"columns": {"text": "source", "label": "target"}, "prefix": "the: ", "target_length": 6}


def random_checkpoint(directory: Path, pieces: Any, family: str) -> str:
    values = config_class(family)(**SIZES).vocabulary_values(pieces.vocab_size, pieces.special)
    config = config_class(family)(**{**SIZES, **values})
    torch.manual_seed(7)
    path = str(directory / "checkpoint")
    checkpoint.save_weights(
        path,
        model=config,
        state=new_model(config).state_dict(),
        tokenizer=pieces,
        heads=config.heads,
    )
    checkpoint.finalize(path)
    return path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, pieces: Any, opposites: Path) -> str:
    base = tmp_path_factory.mktemp("tuned")
    config = FinetuneConfig(
        task="text-to-text",
        data=str(opposites),
        options=OPTIONS,
        global_batch=16,
        epochs=14,
        learning_rate=3e-3,
        max_length=24,
        precision="fp32",
    )
    inputs, out = {"checkpoint": random_checkpoint(base, pieces, "bart")}, base / "out"
    found = execute(FINETUNE, config, inputs, str(out), execution=CPU).as_json()["metrics"]
    assert found["exact_match"] > 0.9
    assert found["majority"] < 0.4
    return str(out)


def test_it_is_scored_by_what_it_wrote(tuned: str, opposites: Path, tmp_path: Path) -> None:
    config = EvaluateConfig(precision="fp32", data=str(opposites))
    result = execute(EVALUATE, config, {"checkpoint": tuned}, str(tmp_path / "eval"))
    rows = read_tsv(str(tmp_path / "eval" / "predictions.tsv"))
    share = sum(row["prediction"] == row["label"] for row in rows) / len(rows)
    assert result.as_json()["metrics"]["exact_match"] == pytest.approx(share)
    low, high = result.as_json()["interval"]["exact_match"]
    assert low <= share <= high


def test_it_writes_for_a_text_with_the_task_s_prefix(tuned: str) -> None:
    pipeline = generation_pipeline(tuned)
    words = ["good warm", "bright"]
    written = [found.text for (found,) in pipeline.generate(words, tokens=8)]
    assert written == ["bad cold", "dull"]
    assert [[own] for own in written] == [
        [found.text for found in row] for row in pipeline.generate(words, tokens=8, beams=3)
    ]
    assert pipeline.question("good")[1:3] == list(pipeline.pieces.encode_batch(["the:"])[0])
    values = {"requests": [{"text": "lovely"}], "beams": 2}
    verb = Generate(tuned, parse_config(GenerateConfig, values, "generate"))
    (answer,) = verb.answer([verb.read(request_of({"text": "lovely"}, 0))])
    assert answer["continuations"][0]["text"] == "awful"


def test_it_is_exported_with_the_check(tuned: str, tmp_path: Path) -> None:
    found = execute(EXPORT, ExportConfig(), {"checkpoint": tuned}, str(tmp_path / "hub"))
    assert found.manifest.summary["architecture"] == "BartForConditionalGeneration"
    assert found.manifest.summary["max_logit_difference"] <= 1e-5
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hub"))
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(tmp_path / "hub"))
    ids = model.generate(**tokenizer("the: good warm", return_tensors="pt"), max_new_tokens=8)
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == "bad cold"
    with pytest.raises(UsageError, match="--format onnx is for encoders or decoders alone"):
        execute(EXPORT, ExportConfig(format="onnx"), {"checkpoint": tuned}, str(tmp_path / "onnx"))


def test_what_cannot_be_is_refused_in_one_sentence(
    tuned: str, pretrained: str, opposites: Path, tmp_path: Path
) -> None:
    config = FinetuneConfig(
        task="text-to-text", data=str(opposites), options=OPTIONS, max_length=24, precision="fp32"
    )
    with pytest.raises(UsageError, match="needs an encoder-decoder, and this checkpoint is a bert"):
        execute(FINETUNE, config, {"checkpoint": pretrained}, str(tmp_path / "no"), execution=CPU)
    with pytest.raises(UsageError, match="no masked_lm head"):
        FillMaskPipeline(tuned)
    with pytest.raises(UsageError, match="searches for its best output; use beams"):
        generation_pipeline(tuned).generate(["good"], tokens=4, samples=2)
    with pytest.raises(UsageError, match=r"did you mean 'rouge[1L]'"):
        load_task("text-to-text", {"metrics": ["rouge"]})
    with pytest.raises(UsageError, match=r"has no masked_lm or lm head \(it has seq2seq\)"):
        SentenceScorer(tuned)
    assert checkpoint.load(tuned).heads == {"seq2seq": {}}


def test_a_missing_package_is_named_before_the_training(
    opposites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    task = load_task("translation", {"columns": OPTIONS["columns"]})
    with pytest.raises(ModuleNotFoundError, match="sacrebleu"):
        task.read(str(opposites), "train", None)


def test_bleu_and_chrf_are_sacrebleu_s() -> None:
    pytest.importorskip("sacrebleu", reason="the extra texts is not installed")
    texts, targets = ["a cat sat on the mat now", "a dog"], ["the cat sat on the mat now", "a dog"]
    assert text_metrics.TEXT_METRICS["bleu"][1](targets, targets) == pytest.approx(1.0)
    assert 0.5 < text_metrics.TEXT_METRICS["bleu"][1](texts, targets) < 1.0
    assert 0.5 < text_metrics.TEXT_METRICS["chrf"][1](texts, targets) < 1.0


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("Москва столица", "москва — столица России", 2 * 2 / 5),
        ("今天天气好", "今天天气很好。", 2 * 5 / 11),
        ("Die Tür ist zu", "Die Tür ist auf", 3 / 4),
        ("The café opened", "The café opens", 2 / 3),
        ("It’s opened", "It’s opening", 1.0),
    ],
)
def test_rouge_reads_every_script(text: str, target: str, expected: float) -> None:
    pytest.importorskip("rouge_score", reason="the extra texts is not installed")
    assert text_metrics.TEXT_METRICS["rougeL"][1]([text], [target]) == pytest.approx(expected)
    assert text_metrics.TEXT_METRICS["rouge2"][1]([target], [target]) == 1.0


def test_rouge_is_a_mean_of_f1() -> None:
    pytest.importorskip("rouge_score", reason="the extra texts is not installed")
    texts, targets = ["a cat", "dogs"], ["a cat sat on", "dog"]
    # 2 of 2 and of 4 words, and one stem
    assert text_metrics.TEXT_METRICS["rouge1"][1](texts, targets) == pytest.approx((2 / 3 + 1) / 2)
    assert text_metrics.TEXT_METRICS["rouge2"][1](texts, targets) == pytest.approx((2 * 1 / 4) / 2)
    assert text_metrics.TEXT_METRICS["rougeL"][1](texts, targets) == pytest.approx((2 / 3 + 1) / 2)
