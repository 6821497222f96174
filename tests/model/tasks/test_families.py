"""Every family fine-tunes, is evaluated, and where Hugging Face has its classifier, is exported
with the check.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.model import checkpoint
from cloze.model.families.hub_formats import exportable, hub_of
from cloze.model.families.models import new_model
from cloze.model.families.registry import FAMILIES, parse_model
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.tasks.evaluate.stage import STAGE as EVALUATE
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.finetune.stage import STAGE as FINETUNE
from cloze.model.tasks.finetune.stage import FinetuneConfig
from tests.slices import few
from tests.tiny_models import variants

CPU = Execution(device="cpu", threads=1)


def pretrained_of(family: str, directory: Path, pieces: Any, shape: Any) -> str:
    pieces.save(str(directory / "tokenizer"))
    values = {
        name: value
        for name, value in shape.model_dump().items()
        if name not in ("type_vocab_size", "layer_norm_eps")
    }
    config = parse_model({**values, "family": family, **variants(family)[0]})
    torch.manual_seed(7)
    path = str(directory / "checkpoint")
    checkpoint.save_weights(
        path,
        model=config,
        state=new_model(config).state_dict(),
        tokenizer=str(directory / "tokenizer"),
        heads=config.heads,
    )
    checkpoint.finalize(path)
    return path


def finetune(path: str, sentiment: Path, out: Path, epochs: int = 8, **values: Any) -> Any:
    config = FinetuneConfig(
        data=str(sentiment),
        epochs=epochs,
        global_batch=16,
        learning_rate=5e-3,
        max_length=24,
        precision="fp32",
        baselines=False,
        **values,
    )
    return execute(FINETUNE, config, {"checkpoint": path}, str(out), execution=CPU)


@pytest.mark.parametrize(
    "family",
    few(sorted(set(FAMILIES) - {"bert", "longformer", "modern"}), "albert", "bart", "elmo", "gpt2"),
)
def test_a_family_learns_a_task_and_goes_to_hugging_face(
    family: str, tmp_path: Path, pieces: Any, shape: Any, sentiment: Path
) -> None:
    path = pretrained_of(family, tmp_path, pieces, shape)
    slow = family in ("elmo", "static")  # tiny ones from random weights, without attention
    tuned = finetune(path, sentiment, tmp_path / "tuned", 15 if slow else 8)
    accuracy = tuned.as_json()["metrics"]["accuracy"]
    assert accuracy > (0.8 if slow else 0.9)
    evaluated = execute(
        EVALUATE,
        EvaluateConfig(precision="fp32", data=str(sentiment)),
        {"checkpoint": str(tmp_path / "tuned")},
        str(tmp_path / "eval"),
    )
    assert evaluated.as_json()["metrics"]["accuracy"] == pytest.approx(accuracy)
    inputs = {"checkpoint": str(tmp_path / "tuned")}
    if family not in exportable():
        with pytest.raises(UsageError, match=f"{family}.* has no Hugging Face form"):
            execute(EXPORT, ExportConfig(), inputs, str(tmp_path / "hub"))
    elif frozenset({"classifier"}) in hub_of(family).architectures:
        exported = execute(EXPORT, ExportConfig(), inputs, str(tmp_path / "hub"))
        assert exported.manifest.summary["max_logit_difference"] <= 1e-5
    else:
        with pytest.raises(
            DataError,
            match=rf"classifier.* of (a|this) {family} model.* no Hugging Face (class|form)",
        ):
            execute(EXPORT, ExportConfig(), inputs, str(tmp_path / "hub"))


def test_a_classifier_on_the_mean_of_all_states(
    tmp_path: Path, pieces: Any, shape: Any, sentiment: Path
) -> None:
    path = pretrained_of("modern", tmp_path, pieces, shape)
    tuned = finetune(path, sentiment, tmp_path / "tuned", pooling="mean")
    assert tuned.as_json()["metrics"]["accuracy"] > 0.9
    assert (
        checkpoint.load(str(tmp_path / "tuned")).model.model_dump()["classifier_pooling"] == "mean"
    )
    config = EvaluateConfig(precision="fp32", data=str(sentiment))
    evaluated = execute(
        EVALUATE, config, {"checkpoint": str(tmp_path / "tuned")}, str(tmp_path / "eval")
    )
    assert evaluated.as_json()["metrics"]["accuracy"] == pytest.approx(
        tuned.as_json()["metrics"]["accuracy"]
    )


def test_a_bilstm_stands_on_a_left_to_right_encoder(
    tmp_path: Path, pieces: Any, shape: Any, sentiment: Path
) -> None:
    path = pretrained_of("ltr", tmp_path, pieces, shape)
    tuned = finetune(path, sentiment, tmp_path / "tuned", bilstm=True)
    assert tuned.as_json()["metrics"]["accuracy"] > 0.9
    loaded = checkpoint.load(str(tmp_path / "tuned"))
    assert any(name.startswith("pooler.lstm.") for name in loaded.state)
    bert = pretrained_of("bert", tmp_path / "bert", pieces, shape)
    with pytest.raises(
        UsageError, match=r"bilstm \(true\) is for left-to-right encoders, this one is bert"
    ):
        finetune(bert, sentiment, tmp_path / "none", bilstm=True)
    with pytest.raises(UsageError, match=r"pooling \(mean\) is not for models of the family bert"):
        finetune(bert, sentiment, tmp_path / "none", pooling="mean")
