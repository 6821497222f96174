"""What other programs write is imported as they mean it: nulls, wrappers' prefixes, heads that are
missing or that no one reads, and labels without B- and I-.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.families.hub_formats import exportable, formats, hub_of
from cloze.model.hub.read import import_directory, read_directory
from cloze.model.hub.stages import EXPORT, IMPORT, ExportConfig, ImportConfig
from cloze.model.tasks.formats.tag_schemes import joined_labels
from cloze.model.tensors import read_tensors, write_tensors
from cloze.model.use.fill_mask import FillMaskPipeline
from tests.tiny_models import PIECES, tiny_config, tiny_model, write_tokenizer

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "vocab_size": len(PIECES),
    "initializer_range": 0.3,
}


def saved(model: Any, path: Path) -> str:
    """A directory of transformers' with the tiny WordPiece vocabulary."""
    model.save_pretrained(str(path))
    checkpoint.copy_files(write_tokenizer(path.parent / "pieces"), str(path))
    return str(path)


def imported(directory: str, out: Path) -> dict[str, Any]:
    summary = execute(IMPORT, ImportConfig(), {"directory": directory}, str(out)).manifest.summary
    return dict(summary)


def seeded(build: Any) -> Any:
    torch.manual_seed(5)
    return build().eval()


def read_or_refused(hub: Any, config: dict[str, Any]) -> Any:
    try:
        return hub.from_config(config, "config.json")
    except DataError as error:
        return str(error)


# Configs.


@pytest.mark.parametrize("hub", formats(), ids=lambda hub: hub.model_type + hub.family)
def test_a_null_is_as_good_as_nothing(hub: Any) -> None:
    """Whatever field it is in: transformers writes `"pad_token_id": null` for a GPT-2."""
    model = tiny_config(family=hub.family)
    heads: dict[str, Any] = {head: {} for head in next(iter(hub.architectures))}
    if "masked_lm" in heads:
        heads["masked_lm"] = {"objectives": list(hub.objectives)[:1]}
    config = hub.to_config(model, heads, None)
    required = {"vocab_size", "model_type"}
    for name in config.keys() - required:
        absent = {key: value for key, value in config.items() if key != name}
        assert read_or_refused(hub, {**config, name: None}) == read_or_refused(hub, absent), name


def test_megatron_berts_defaults_are_transformers() -> None:
    theirs = transformers.MegatronBertConfig().to_dict()
    hub = hub_of("megatron-bert")
    bare = {"model_type": "megatron-bert", "vocab_size": 29056}
    assert hub.from_config(bare, "config.json") == hub.from_config(theirs, "config.json")


def test_barts_decoder_starts_as_its_config_says(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "init_std": 0.3}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24}
    sizes |= {"decoder_ffn_dim": 24, "max_position_embeddings": 32, "vocab_size": len(PIECES)}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    model = seeded(
        lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **ids))
    )
    directory = saved(model, tmp_path / "hub")
    summary = imported(directory, tmp_path / "out")
    assert summary["max_logit_difference"] < 1e-5
    assert checkpoint.load(str(tmp_path / "out")).model.model_dump()["decoder_start_token_id"] == 2
    execute(EXPORT, ExportConfig(), {"checkpoint": str(tmp_path / "out")}, str(tmp_path / "back"))
    content = json.loads((tmp_path / "back" / "config.json").read_text())
    assert content["decoder_start_token_id"] == 2
    generation = Path(directory) / "generation_config.json"
    generation.write_text(json.dumps({"forced_bos_token_id": 7}))
    with pytest.raises(DataError, match=r"forced_bos_token_id \(7\) must be bos_token_id \(2\)"):
        read_directory(directory)


def test_marians_decoder_starts_with_padding() -> None:
    hub = hub_of("transformer")
    config = hub.to_config(tiny_config(family="transformer"), {"seq2seq": {}}, None)
    with pytest.raises(DataError, match=r"decoder_start_token_id \(9\) must be pad_token_id"):
        hub.from_config({**config, "decoder_start_token_id": 9}, "config.json")


@pytest.mark.parametrize("form", ["transformers 5", "transformers 4", "new in 5", "version 1.0"])
def test_t5_scales_where_its_config_says(form: str, tmp_path: Path) -> None:
    """transformers 5 ties always, and says by `scale_decoder_outputs` what `tie_word_embeddings`
    said: whether states are scaled as in version 1.0.
    """
    config = transformers.T5Config(
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=1,
        num_heads=2,
        vocab_size=len(PIECES),
        decoder_start_token_id=0,
        eos_token_id=3,
        feed_forward_proj="relu" if form == "version 1.0" else "gated-gelu",
        tie_word_embeddings=form == "version 1.0",
    )
    model = seeded(lambda: transformers.T5ForConditionalGeneration(config))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    directory = Path(saved(model, tmp_path / "hub"))
    values = json.loads((directory / "config.json").read_text())
    if form in ("transformers 5", "transformers 4"):  # with a matrix of its own
        state["lm_head.weight"] = state["lm_head.weight"].flip(0).contiguous()
        write_tensors(str(directory / "model.safetensors"), state)
    if form == "transformers 4":
        del values["scale_decoder_outputs"]
        values["tie_word_embeddings"] = False
    (directory / "config.json").write_text(json.dumps(values))
    summary = imported(str(directory), tmp_path / "out")
    assert summary["max_logit_difference"] < 1e-4
    assert set(summary["compared"]) == {"seq2seq_logits", "hidden"}
    ours = checkpoint.load(str(tmp_path / "out")).model.model_dump()
    assert ours["tie_word_embeddings"] == (form == "version 1.0")
    back = str(tmp_path / "back")
    execute(EXPORT, ExportConfig(), {"checkpoint": str(tmp_path / "out")}, back)


def test_a_gated_gelu_that_t5_does_not_know_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="use hidden_act: gelu_new"):
        tiny_config(family="t5", gated_feed_forward=True, hidden_act="gelu")


# Weights.


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("family", exportable())
def test_what_wrappers_of_torch_add_to_names_is_no_part_of_them(family: str, prefix: str) -> None:
    model, hub = tiny_config(family=family), hub_of(family)
    state = hub.to_state(tiny_model(family=family).state_dict(), model.heads, model)
    expected = hub.from_state(state, "here", None, model)
    outside = {prefix + name: tensor for name, tensor in state.items()}
    inside = {name.replace(".", f".{prefix}", 1): tensor for name, tensor in state.items()}
    for wrapped in (outside, inside):
        found = hub.from_state(wrapped, "here", None, model)
        assert found.keys() == expected.keys()
        assert all(found[name].equal(tensor) for name, tensor in expected.items())


def test_a_name_that_is_unknown_is_the_files() -> None:
    state = {f"backbone.{name}": tensor for name, tensor in {"a.weight": torch.ones(1)}.items()}
    with pytest.raises(DataError, match=r"contains backbone\.a\.weight"):
        hub_of("bert").from_state(state, "here")


@pytest.mark.parametrize("equal", [True, False])
def test_an_untied_decoder_is_taken_if_it_is_a_copy(equal: bool, tmp_path: Path) -> None:
    config = transformers.BertConfig(**SIZES, tie_word_embeddings=False)
    model = seeded(lambda: transformers.BertForMaskedLM(config))
    if equal:
        words = model.bert.embeddings.word_embeddings.weight.data
        model.cls.predictions.decoder.weight.data = words.clone()
        model.cls.predictions.decoder.bias.data = model.cls.predictions.bias.data.clone()
    directory = saved(model, tmp_path / "hub")
    if not equal:
        with pytest.raises(DataError, match="must be tied to bert"):
            read_directory(directory)
        return
    assert imported(directory, tmp_path / "out")["max_logit_difference"] < 1e-5


def test_a_decoder_without_a_bias_has_one_of_zero(tmp_path: Path) -> None:
    config = transformers.ModernBertConfig(
        **SIZES, decoder_bias=False, pad_token_id=0, local_attention=8
    )
    model = seeded(lambda: transformers.ModernBertForMaskedLM(config))
    summary = imported(saved(model, tmp_path / "hub"), tmp_path / "out")
    assert summary["max_logit_difference"] < 1e-5
    assert "mlm_logits" in summary["compared"]


# Heads.


def electra(**changes: Any) -> Any:
    return transformers.ElectraConfig(**SIZES, embedding_size=8, **changes)


def test_an_electra_generator_is_a_masked_language_model(tmp_path: Path) -> None:
    model = seeded(lambda: transformers.ElectraForMaskedLM(electra()))
    summary = imported(saved(model, tmp_path / "hub"), tmp_path / "out")
    assert (summary["initialized"], summary["left_out"]) == ([], [])
    assert set(summary["compared"]) == {"mlm_logits", "hidden"}
    filler = FillMaskPipeline(str(tmp_path / "out"))
    ids = torch.tensor([filler.question("the [MASK] sat").ids])
    with torch.no_grad():
        (mask,) = (ids[0] == filler.pieces.special.mask).nonzero()[0].tolist()
        expected = model(ids).logits[0, mask].softmax(-1)
    (found,) = filler.fill("the [MASK] sat", 3)
    np.testing.assert_allclose(
        [float(candidate["score"]) for candidate in found], expected.topk(3).values, atol=1e-5
    )
    hub = str(tmp_path / "again")
    made = execute(EXPORT, ExportConfig(), {"checkpoint": str(tmp_path / "out")}, hub)
    assert made.manifest.summary["architecture"] == "ElectraForMaskedLM"


def test_electra_by_another_class_names_what_it_leaves_out(tmp_path: Path) -> None:
    """Weights of two heads in one file, of which the config names one."""
    generator = seeded(lambda: transformers.ElectraForMaskedLM(electra()))
    directory = Path(saved(transformers.ElectraForPreTraining(electra()), tmp_path / "hub"))
    weights = read_tensors(str(directory / "model.safetensors"))
    head = {n: t for n, t in generator.state_dict().items() if n.startswith("generator_pred")}
    write_tensors(str(directory / "model.safetensors"), {**weights, **head})
    summary = imported(str(directory), tmp_path / "out")
    assert summary["initialized"] == ["generator"]
    assert set(summary["left_out"]) == head.keys()
    assert set(summary["compared"]) == {"rtd_logits", "hidden"}
    line = IMPORT.headline(summary)
    assert "random weights: generator" in line
    assert "left out: generator_predictions" in line


def test_electra_chooses_by_the_classifiers_vector_alone(tmp_path: Path) -> None:
    hub = hub_of("electra")
    values = {**electra().to_dict(), "architectures": ["ElectraForMultipleChoice"]}
    hub.from_config(values, "config.json")
    for changes in ({"summary_type": "mean"}, {"summary_activation": "tanh"}):
        with pytest.raises(DataError, match=next(iter(changes))):
            hub.from_config({**values, **changes}, "config.json")


# Rounding.

LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 1.0}


def test_the_gate_is_transformers_own_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights so large that fp32 loses more digits than the tolerance allows, in both programs; and
    a fault that no rounding explains.
    """
    config = transformers.BertConfig(**{**SIZES, **LAYERS})
    directory = saved(seeded(lambda: transformers.BertForPreTraining(config)), tmp_path / "hub")
    monkeypatch.setattr("cloze.model.hub.parity.TOLERANCE", 1e-12)
    assert imported(directory, tmp_path / "out")["max_logit_difference"] >= 0
    monkeypatch.setattr(
        "cloze.model.hub.read.HubFormat.from_config",
        lambda self, config, where: tiny_config(**{**SIZES, **LAYERS, "hidden_act": "relu"}),
    )
    with pytest.raises(Exception, match="gives logits that differ"):
        imported(directory, tmp_path / "wrong")


# Labels of words.


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("LABEL_1 LABEL_1 LABEL_0", [("LABEL_1", 0, 1), ("LABEL_0", 2, 2)]),
        ("O PER PER O LOC", [("PER", 1, 2), ("LOC", 4, 4)]),
        ("PER O PER", [("PER", 0, 0), ("PER", 2, 2)]),
        ("B-PER I-PER MISC", [("PER", 0, 1), ("MISC", 2, 2)]),
        ("B-PER B-PER PER", [("PER", 0, 0), ("PER", 1, 2)]),
        ("", []),
    ],
)
def test_labels_join_as_in_transformers_pipeline(
    labels: str, expected: list[tuple[str, int, int]]
) -> None:
    assert joined_labels(labels.split()) == expected


@pytest.mark.parametrize(
    ("names", "scheme"),
    [
        (None, "joined"),
        (["O", "PER"], "joined"),
        (["O", "B-PER", "I-PER", "MISC"], "joined"),
        (["O", "B-PER", "I-PER"], None),
    ],
)
def test_a_token_head_tags_whole_words_with_whole_labels(
    names: list[str] | None, scheme: str | None, tmp_path: Path
) -> None:
    from cloze.labs.serving.predictors import TokenClassificationPipeline

    labels = {"id2label": dict(enumerate(names))} if names else {"num_labels": 2}
    config = transformers.BertConfig(**SIZES, **labels)
    model = seeded(lambda: transformers.BertForTokenClassification(config))
    directory = saved(model, tmp_path / "hub")
    found = import_directory(directory, str(tmp_path / "out"))
    assert found.task is not None
    assert found.task.get("options", {}).get("scheme") == scheme
    tagger = TokenClassificationPipeline(str(tmp_path / "out"))
    text = "the cat sat on the mat"
    pieces = transformers.AutoTokenizer.from_pretrained(directory)
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=pieces, aggregation_strategy="first"
    )
    theirs = [(e["entity_group"], e["start"], e["end"]) for e in pipeline(text)]
    ours = [(e["type"], e["start"], e["end"]) for e in tagger.tag(text)]
    if scheme is not None:
        assert ours == theirs
    assert all(
        kind
        in {n.removeprefix("B-").removeprefix("I-") for n in names or ()} | {"LABEL_0", "LABEL_1"}
        for kind, _, _ in ours
    )


# A training.
