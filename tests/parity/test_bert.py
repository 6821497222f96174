"""BERT against transformers: the same logits, losses and gradients in both directions, and no key
left over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.errors import ClozeError
from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.families.bert import HUB
from cloze.model.families.models import load_model
from cloze.model.hub import parity
from cloze.model.hub.read import import_directory, read_directory
from cloze.model.hub.stages import EXPORT, IMPORT, ExportConfig, ImportConfig
from cloze.model.objectives import objectives
from tests.model.scores import score, total_loss
from tests.parity.families import Case, their_inputs, their_labels, transformers
from tests.tiny_models import (
    PIECES,
    tiny_batch,
    tiny_config,
    tiny_model,
    write_checkpoint,
    write_classifier,
    write_tokenizer,
)

TOLERANCE = {"atol": 1e-5, "rtol": 0.0}
HEADS = tiny_config().heads


def hugging_face(seed: int = 0, **changes: Any) -> Any:
    """A random BertForPreTraining of the tiny sizes, biases and norms included."""
    return Case(family="bert", changes=changes).theirs(seed=seed)


@pytest.mark.parametrize("length", [4, 13, 32])
@pytest.mark.parametrize(
    "changes", [{}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-6}, {"hidden_act": "relu"}]
)
def test_their_weights_in_our_model_give_their_logits(length: int, changes: dict[str, Any]) -> None:
    theirs = hugging_face(**changes)
    ours = load_model(tiny_config(**changes), HUB.from_state(theirs.state_dict(), "theirs"))
    batch = tiny_batch(rows=5, length=length, seed=length)
    with torch.inference_mode():
        outputs, expected = (
            ours(batch),
            theirs(**their_inputs(theirs, batch), output_hidden_states=True),
        )
    real = batch["attention_mask"]
    torch.testing.assert_close(
        outputs["hidden"][real], expected.hidden_states[-1][real], **TOLERANCE
    )
    masked = expected.prediction_logits.flatten(0, 1)[batch["masked_positions"]]
    torch.testing.assert_close(outputs["mlm_logits"], masked, **TOLERANCE)
    torch.testing.assert_close(
        outputs["pair_logits"], expected.seq_relationship_logits, **TOLERANCE
    )


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_total_loss_and_every_gradient_agree(dropout: float) -> None:
    theirs = hugging_face(
        hidden_dropout=dropout
    )  # evaluation mode: dropout must then make no difference
    ours = load_model(
        tiny_config(hidden_dropout=dropout), HUB.from_state(theirs.state_dict(), "theirs")
    )
    batch = tiny_batch(rows=6, length=15)
    outputs = ours(batch)
    loss = total_loss(
        [score(objective, outputs, batch) for objective in objectives(("mlm", "nsp"))]
    )
    expected = theirs(**their_inputs(theirs, batch), **their_labels(batch)).loss
    torch.testing.assert_close(loss, expected, **TOLERANCE)
    loss.backward()
    expected.backward()
    gradients = {
        HUB.keys.to_hf(name): parameter.grad for name, parameter in ours.named_parameters()
    }
    reference = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == reference.keys()
    for name, gradient in reference.items():
        torch.testing.assert_close(
            gradients[name],
            gradient,
            atol=1e-5,
            rtol=1e-4,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_no_key_is_left_over_on_either_side() -> None:
    theirs = {name for name in hugging_face().state_dict() if HUB.drop_of(name) is None}
    ours = tiny_model().state_dict()
    assert {HUB.keys.to_hf(name) for name in ours} == theirs
    assert {HUB.keys.from_hf(name) for name in theirs} == set(ours)


@pytest.mark.parametrize(
    ("heads", "name"), [(heads, name) for heads, name in HUB.architectures.items()]
)
def test_their_class_has_no_other_parameter(heads: frozenset[str], name: str) -> None:
    config = transformers.BertConfig(**HUB.to_config(tiny_config(), HEADS, None))
    model = getattr(transformers, name)(config)
    prefix = (
        "" if hasattr(model, "bert") else "bert."
    )  # the encoder alone is read out of files that have more
    names = {prefix + parameter for parameter in model.state_dict()}
    names = {name for name in names if HUB.drop_of(name) is None}
    keys = HUB.keys_for(heads)
    assert [missing for missing in sorted(names) if keys.from_hf(missing) is None] == []


def export(directory: str, out: Path) -> Path:
    result = execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(out))
    summary = result.manifest.summary
    assert summary["directory"] == str(out)
    assert 0 <= summary["max_logit_difference"] <= 1e-5
    assert "not compared" not in EXPORT.headline(summary)
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "manifest.json"} <= {
        p.name for p in out.iterdir()
    }
    return out


def opened(auto: Any, directory: Path) -> Any:
    model, info = auto.from_pretrained(
        str(directory), local_files_only=True, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


def test_an_exported_checkpoint_opens_and_gives_our_logits(tmp_path: Path) -> None:
    directory = write_checkpoint(
        tmp_path / "checkpoint", tmp_path / "scratch", initializer_range=0.2
    )
    out = export(directory, tmp_path / "hub")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(out), local_files_only=True)
    assert tokenizer.model_max_length == 32
    texts, pairs = ["The cat sat", "A dog ran in the park."], ["on the [MASK].", "it [MASK]"]
    encoded = tokenizer(texts, pairs, padding=True, return_tensors="pt")
    assert encoded["input_ids"][0, 0] == PIECES.index("[CLS]")
    masked = (encoded["input_ids"] == tokenizer.mask_token_id).flatten().nonzero().squeeze(1)
    assert len(masked) == 2
    loaded = checkpoint.load(directory)
    batch = {
        **encoded,
        "attention_mask": encoded["attention_mask"].bool(),
        "masked_positions": masked,
    }
    with torch.inference_mode():
        ours = load_model(loaded.model, loaded.state)(batch)
        pretraining = opened(transformers.AutoModelForPreTraining, out)(**encoded)
        masked_lm = opened(transformers.AutoModelForMaskedLM, out)(**encoded)
    assert type(opened(transformers.AutoModelForPreTraining, out)).__name__ == "BertForPreTraining"
    torch.testing.assert_close(
        pretraining.prediction_logits.flatten(0, 1)[masked], ours["mlm_logits"], **TOLERANCE
    )
    torch.testing.assert_close(
        masked_lm.logits.flatten(0, 1)[masked], ours["mlm_logits"], **TOLERANCE
    )
    torch.testing.assert_close(
        pretraining.seq_relationship_logits, ours["pair_logits"], **TOLERANCE
    )


def test_an_exported_classifier_opens_with_its_labels(tmp_path: Path) -> None:
    directory = write_classifier(
        tmp_path / "checkpoint", tmp_path / "scratch", ("bad", "good", "neither")
    )
    out = export(directory, tmp_path / "hub")
    model = opened(transformers.AutoModelForSequenceClassification, out)
    assert model.config.id2label == {0: "bad", 1: "good", 2: "neither"}
    assert model.config.label2id == {"bad": 0, "good": 1, "neither": 2}
    assert model.config.num_labels == 3
    pipeline = transformers.pipeline("text-classification", model=str(out), tokenizer=str(out))
    assert pipeline("the cat sat")[0]["label"] in {"bad", "good", "neither"}
    found = read_directory(str(out))
    assert found.task == checkpoint.load(directory).task
    assert found.heads == {"classifier": {"num_labels": 3}}


def test_there_and_back_is_the_same_checkpoint(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    import_directory(str(export(directory, tmp_path / "hub")), str(tmp_path / "back"))
    before, after = checkpoint.load(directory), checkpoint.load(str(tmp_path / "back"))
    assert after.model == before.model
    assert after.heads == before.heads
    assert all(after.state[name].equal(tensor) for name, tensor in before.state.items())
    assert (tmp_path / "back/tokenizer/tokenizer.json").read_bytes() == (
        tmp_path / "checkpoint/tokenizer/tokenizer.json"
    ).read_bytes()


def test_what_transformers_saves_is_imported(tmp_path: Path) -> None:
    theirs, batch = hugging_face(), tiny_batch()
    checkpoint.copy_files(write_tokenizer(tmp_path / "scratch"), str(tmp_path / "hub"))
    theirs.save_pretrained(str(tmp_path / "hub"))
    import_directory(str(tmp_path / "hub"), str(tmp_path / "checkpoint"))
    loaded = checkpoint.load(str(tmp_path / "checkpoint"))
    with torch.inference_mode():
        expected = theirs(**their_inputs(theirs, batch))
        found = load_model(loaded.model, loaded.state)(batch)
    torch.testing.assert_close(found["pair_logits"], expected.seq_relationship_logits, **TOLERANCE)


def test_export_is_the_same_bytes_again_and_cached(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    first = execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "1"))
    second = execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "2"))
    assert first.manifest.content_sha256 == second.manifest.content_sha256
    assert execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "1")).cached


def test_an_export_that_changes_logits_fails_and_leaves_no_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    original = type(HUB).to_config

    def tampered(*arguments: Any) -> dict[str, Any]:
        return {**original(*arguments), "num_attention_heads": 2}

    monkeypatch.setattr(type(HUB), "to_config", tampered)
    with pytest.raises(ClozeError, match=r"config\.json differs"):
        execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "out"))
    monkeypatch.setattr("cloze.model.hub.write.check_reload", lambda *_: None)
    with pytest.raises(ClozeError, match="logits that differ by"):
        execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "out"))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_without_transformers_export_still_checks_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "find_spec", lambda name: None)
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    result = execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "out"))
    assert result.manifest.summary["max_logit_difference"] is None
    assert "transformers is not installed; run" in EXPORT.headline(result.manifest.summary)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("bert", ["BertForMaskedLM"])
    inputs = {"directory": str(tmp_path / "out")}
    imported = execute(IMPORT, ImportConfig(), inputs, str(tmp_path / "back"))
    assert "transformers is not installed; run" in IMPORT.headline(imported.manifest.summary)
