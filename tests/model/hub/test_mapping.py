"""The weight map is one table read both ways; configs and files that it cannot express are refused
by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.artifacts import checkpoints
from cloze.core.errors import ClozeError, DataError
from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.families.bert import HUB
from cloze.model.families.hub_formats import exportable, hub_of
from cloze.model.families.key_map import KeyMap
from cloze.model.families.registry import FAMILIES
from cloze.model.hub.read import import_directory, read_directory
from cloze.model.hub.stages import EXPORT, IMPORT, ExportConfig, ImportConfig
from cloze.model.tensors import read_tensors, write_tensors
from tests.tiny_models import (
    TRANSFORMERS,
    tiny_config,
    tiny_model,
    write_checkpoint,
    write_tokenizer,
)

HEADS = tiny_config().heads


def write_hub_directory(
    path: Path, changes: dict[str, Any] | None = None, state: dict[str, torch.Tensor] | None = None
) -> str:
    pieces = write_tokenizer(path / "scratch")
    checkpoint.copy_files(pieces, str(path / "hub"))
    config = {**HUB.to_config(tiny_config(), HEADS, None), **(changes or {})}
    (path / "hub" / "config.json").write_text(json.dumps(config))
    write_tensors(
        str(path / "hub" / "model.safetensors"), state or HUB.to_state(tiny_model().state_dict())
    )
    return str(path / "hub")


def test_tables_are_of_families() -> None:
    assert [hub_of(family).family for family in exportable()] == [
        family for family in FAMILIES if family in TRANSFORMERS
    ]


def test_names_go_there_and_back() -> None:
    names = [
        *tiny_model().state_dict(),
        "classifier.weight",
        "classifier.bias",
        "encoder.layers.23.attention.query.weight",
    ]
    theirs = [HUB.keys.to_hf(name) for name in names]
    assert None not in theirs
    assert len(set(theirs)) == len(names)
    assert [HUB.keys.from_hf(str(name)) for name in theirs] == names
    assert HUB.keys.from_hf("bert.embeddings.word_embeddings_weight") is None  # the dots are dots
    assert HUB.keys.to_hf("encoder.layers.x.attention.query.weight") is None


def test_a_row_that_cannot_be_read_back_is_refused() -> None:
    with pytest.raises(ValueError, match="different placeholders"):
        KeyMap([("a.{n}.{p}", "b.{p}")])


def test_config_goes_there_and_back() -> None:
    model = tiny_config(
        hidden_act="gelu_new",
        layer_norm_eps=1e-6,
        pad_token_id=3,
        hidden_dropout=0.2,
        attention_dropout=0.3,
    )
    assert HUB.from_config(HUB.to_config(model, HEADS, None), "config.json") == model
    own = {"family", "heads_by_layer"}  # transformers has no form for the second
    assert set(HUB.fields) == set(type(model).model_fields) - own


def test_import_writes_a_checkpoint(tmp_path: Path) -> None:
    import_directory(write_hub_directory(tmp_path), str(tmp_path / "out"))
    loaded = checkpoint.load(str(tmp_path / "out"))
    assert loaded.model == tiny_config()
    assert loaded.heads == HEADS
    assert loaded.dataset is None
    assert all(
        loaded.state[name].equal(tensor) for name, tensor in tiny_model().state_dict().items()
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "longformer", "modern"])
def test_heads_of_another_activation_are_those_of_transformers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "own", tmp_path / "pieces", family=family, hidden_act="relu")
    exported = execute(EXPORT, ExportConfig(), {"checkpoint": path}, str(tmp_path / "hub"))
    assert exported.manifest.summary["max_logit_difference"] <= 1e-5
    inputs = {"directory": str(tmp_path / "hub")}
    imported = execute(IMPORT, ImportConfig(), inputs, str(tmp_path / "back"))
    assert imported.manifest.summary["max_logit_difference"] <= 1e-5
    monkeypatch.setattr("cloze.model.hub.parity.TOLERANCE", -1.0)
    monkeypatch.setattr("cloze.model.hub.parity.ROUNDING", -1.0)
    with pytest.raises(ClozeError, match="gives logits that differ"):
        execute(IMPORT, ImportConfig(), inputs, str(tmp_path / "again"))


def test_old_names_copies_half_precision_and_shards_are_read(tmp_path: Path) -> None:
    state = HUB.to_state(tiny_model().state_dict())
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): t
        for name, t in state.items()
    }
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    state["bert.embeddings.position_ids"] = torch.arange(32)[None]
    expected = read_directory(write_hub_directory(tmp_path / "plain")).state
    found = read_directory(write_hub_directory(tmp_path / "old", state=state)).state
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in found)

    sharded = Path(write_hub_directory(tmp_path / "sharded"))
    (sharded / "model.safetensors").unlink()
    names = sorted(state)
    parts = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for file, keys in parts.items():
        write_tensors(str(sharded / file), {name: state[name] for name in keys})
    index = {"weight_map": {name: file for file, keys in parts.items() for name in keys}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert all(
        tensor.equal(expected[name]) for name, tensor in read_directory(str(sharded)).state.items()
    )

    half = {name: tensor.half() for name, tensor in HUB.to_state(tiny_model().state_dict()).items()}
    assert {
        t.dtype
        for t in read_directory(write_hub_directory(tmp_path / "half", state=half)).state.values()
    } == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "gpt_neox"}, "model_type 'gpt_neox'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"num_attention_heads": 3}, "must be divisible"),
        ({"vocab_size": None}, "no vocab_size"),
        ({"vocab_size": 99}, "has shape"),
    ],
)
def test_configs_that_are_not_ours_are_refused(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    directory = write_hub_directory(tmp_path, changes)
    with pytest.raises(DataError, match=fault):
        import_directory(directory, str(tmp_path / "out"))
    assert not checkpoints.is_checkpoint(str(tmp_path / "out"))


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    state = HUB.to_state(tiny_model().state_dict())
    untied = {
        **state,
        "cls.predictions.decoder.weight": 1 + state["bert.embeddings.word_embeddings.weight"],
    }
    with pytest.raises(DataError, match="must be tied"):
        read_directory(write_hub_directory(tmp_path / "untied", state=untied))
    with pytest.raises(DataError, match=r"contains bert\.odd\.weight"):
        read_directory(
            write_hub_directory(
                tmp_path / "odd", state={**state, "bert.odd.weight": torch.zeros(1)}
            )
        )
    headless = {name: tensor for name, tensor in state.items() if not name.startswith("cls.seq")}
    assert read_directory(write_hub_directory(tmp_path / "headless", state=headless)).fresh == (
        "pair.bias",
        "pair.weight",
    )
    short = {name: tensor for name, tensor in state.items() if name != "bert.pooler.dense.bias"}
    with pytest.raises(DataError, match=r"lack pooler\.dense\.bias"):
        import_directory(
            write_hub_directory(tmp_path / "short", state=short), str(tmp_path / "out")
        )


def test_a_directory_with_a_pickle_alone_is_refused(tmp_path: Path) -> None:
    directory = Path(write_hub_directory(tmp_path))
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(DataError, match="a pickle, which can run code"):
        import_directory(str(directory), str(tmp_path / "out"))
    with pytest.raises(
        DataError, match="contains more than tensors, or is damaged"
    ):  # it is no pickle at all
        import_directory(str(directory), str(tmp_path / "out"), trust_pickle=True)
    (directory / "pytorch_model.bin").unlink()
    with pytest.raises(DataError, match=r"has no model\.safetensors"):
        import_directory(str(directory), str(tmp_path / "out"))


def test_a_trusted_pickle_gives_tensors_and_runs_nothing(tmp_path: Path) -> None:
    directory = Path(write_hub_directory(tmp_path))
    state = read_tensors(str(directory / "model.safetensors"))
    (directory / "model.safetensors").unlink()
    torch.save(state, directory / "pytorch_model.bin")
    import_directory(str(directory), str(tmp_path / "out"), trust_pickle=True)
    assert (
        checkpoint.load(str(tmp_path / "out"))
        .state["masked_lm.bias"]
        .equal(state["cls.predictions.bias"])
    )

    half = len(state) // 2
    torch.save(
        {"step": torch.ones(1)}, directory / "optimizer.pt"
    )  # sorted before pytorch_model.bin
    (directory / "pytorch_model.bin").unlink()
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    for number, name in enumerate(names):
        part = dict(list(state.items())[number * half : (number + 1) * half + number])
        torch.save(part, directory / name)
    weight_map = {key: names[int(place >= half)] for place, key in enumerate(state)}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    import_directory(str(directory), str(tmp_path / "shards"), trust_pickle=True)
    whole, shards = (checkpoint.load(str(tmp_path / name)).state for name in ("out", "shards"))
    assert whole.keys() == shards.keys()
    assert all(tensor.equal(shards[name]) for name, tensor in whole.items())

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    torch.save({**state, "bert.payload": Payload()}, directory / "pytorch_model.bin")
    with pytest.raises(DataError, match="contains more than tensors"):
        import_directory(str(directory), str(tmp_path / "out"), trust_pickle=True)
    assert not (tmp_path / "executed").exists()


def test_an_index_may_not_lead_outside(tmp_path: Path) -> None:
    directory = Path(write_hub_directory(tmp_path))
    (directory / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "../outside.safetensors"}})
    )
    with pytest.raises(DataError, match="must name files in"):
        read_directory(str(directory))
