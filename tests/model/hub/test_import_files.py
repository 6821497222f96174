"""The files of directories that others save: damaged or quantized weights, adapters, poolings,
labels, and what transformers itself refuses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cloze.core.errors import DataError
from cloze.labs.embed import EmbeddingPipeline
from cloze.model.hub.parity import largest_difference
from cloze.model.hub.stages import IMPORT
from tests.model.hub.test_import_forms import SIZES, imported, saved, seeded

transformers = pytest.importorskip("transformers")
Change = Callable[[Path], None]


def bert(kind: str, path: Path, **values: Any) -> Path:
    config = transformers.BertConfig(**SIZES, **values)
    return Path(saved(seeded(lambda: getattr(transformers, f"Bert{kind}")(config)), path / "hub"))


def config(**values: Any) -> Change:
    def change(path: Path) -> None:
        content = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(content | values))

    return change


def weights(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def rewrite(path: Path) -> None:
        name = path / "model.safetensors"
        save_file({key: value.clone() for key, value in change(load_file(name)).items()}, name)

    return rewrite


def adapter(path: Path) -> None:
    (path / "config.json").rename(path / "adapter_config.json")


def older_sentence_transformer(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "modules.json").write_text("[]")


def damaged(name: str, value: float) -> Change:
    def fill(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, name: state[name].index_fill(0, torch.tensor([1]), value)}

    return weights(fill)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damaged("cls.predictions.bias", float("nan")), "cls.predictions.bias has values that are"),
        (damaged("bert.embeddings.LayerNorm.bias", float("-inf")), "LayerNorm.bias has values"),
        (config(quantization_config={"quant_method": "gptq"}), "has a quantization_config"),
        (config(hidden_size="16"), "is refused by BertForMaskedLM of transformers"),
        (config(num_attention_heads=2.0), "is refused by BertForMaskedLM of transformers"),
        (adapter, "merge_and_unload"),
        (older_sentence_transformer, "0_Transformer"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(change: Change, message: str, tmp_path: Path) -> None:
    directory = bert("ForMaskedLM", tmp_path)
    change(directory)
    with pytest.raises(DataError, match=message):
        imported(str(directory), tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"0": "a", "1": "a", "2": "b"}, "gives the name 'a' to several labels"),
        ({"1": "a", "2": "b", "3": "c"}, "has id2label for 1, 2, 3, the classifier has 3 labels"),
        (["a", "b", "c"], "has id2label for a, b, c"),
    ],
)
def test_labels_are_numbered_and_differ(names: Any, message: str, tmp_path: Path) -> None:
    directory = bert("ForSequenceClassification", tmp_path, num_labels=3)
    config(id2label=names)(directory)
    with pytest.raises(DataError, match=message):
        imported(str(directory), tmp_path / "out")


def test_numbers_that_are_none_differ() -> None:
    ours = {"hidden": torch.zeros(2, 3), "mlm_logits": torch.tensor([0.0, float("nan")])}
    for names in (("hidden", "mlm_logits"), ("mlm_logits", "hidden")):
        found = largest_difference(ours, {name: ours[name] for name in names})
        assert np.isnan(found.relative)
        assert np.isnan(found.absolute)


def test_names_that_transformers_does_not_find_are_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own weights would be random, so no difference means anything; and no bar is drawn."""
    directory = bert("ForMaskedLM", tmp_path)
    weights(lambda state: {f"module.{name}": value for name, value in state.items()})(directory)
    capfd.readouterr()
    summary = imported(str(directory), tmp_path / "out")
    assert summary["max_logit_difference"] is None
    assert "logits not compared" in IMPORT.headline(summary)
    assert "Loading" not in capfd.readouterr().err


def test_what_is_left_out_has_the_names_of_the_file(tmp_path: Path) -> None:
    directory = bert("ForSequenceClassification", tmp_path)
    config(architectures=["BertForTokenClassification"])(directory)
    summary = imported(str(directory), tmp_path / "out")
    assert summary["left_out"] == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]


@pytest.mark.parametrize("form", ["old", "new"])
@pytest.mark.parametrize(("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "first")])
@pytest.mark.parametrize("normalize", [True, False])
def test_sentence_transformers_poolings_are_kept(
    form: str, mode: str, pooling: str, normalize: bool, tmp_path: Path
) -> None:
    directory = bert("Model", tmp_path)
    kinds = ["Transformer", "Pooling", "Normalize"][: 2 + normalize]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in kinds]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "Pooling").mkdir()
    options = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}
    options |= {f"pooling_mode_{mode}": True}
    if form == "new":
        options = {"pooling_mode": mode.split("_")[0]}
    (directory / "Pooling" / "config.json").write_text(json.dumps(options))
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    summary = imported(str(directory), tmp_path / "out")
    assert summary["left_out"] == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
    assert summary["initialized"] == []
    own = EmbeddingPipeline(str(tmp_path / "out"))
    assert (own.pooling, own.normalize, own.max_length) == (pooling, normalize, 8)
    (directory / "Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(DataError, match="pools by max_tokens"):
        imported(str(directory), tmp_path / "again")
