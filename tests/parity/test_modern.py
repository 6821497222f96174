"""The modern encoder against transformers' ModernBERT: logits, gradients, classifier, both
directions, no key left over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.families.models import load_backbone
from cloze.model.families.modern import HUB
from cloze.model.hub.read import import_directory
from cloze.model.hub.stages import EXPORT, ExportConfig
from tests.model.layouts import laid
from tests.parity.families import FORWARD, GRADIENTS, Case, their_inputs, their_logits, transformers
from tests.tiny_models import tiny_batch, tiny_model, write_checkpoint

# A window of 4 in rows of up to 32: local layers hide most of the row, and are computed in bands
# where rows are long enough.
CASE = Case(family="modern", changes={"num_hidden_layers": 4, "local_attention": 4})


@pytest.mark.parametrize("choice", ["padded", "buckets"])
@pytest.mark.parametrize("length", [5, 13, 32])
def test_logits_and_gradients_agree(length: int, choice: Any) -> None:
    theirs = CASE.theirs()
    ours = CASE.ours(theirs)
    batch = tiny_batch(rows=5, length=length, seed=length)
    outputs, expected = (
        ours(laid(batch, choice)),
        their_logits(CASE, theirs(**their_inputs(theirs, batch)), batch),
    )
    assert expected.keys() == {"mlm_logits"}
    torch.testing.assert_close(outputs["mlm_logits"], expected["mlm_logits"], **FORWARD)
    outputs["mlm_logits"].square().mean().backward()
    expected["mlm_logits"].square().mean().backward()
    gradients = {
        CASE.hub.keys.to_hf(name): parameter.grad for name, parameter in ours.named_parameters()
    }
    reference = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == reference.keys()
    for name, gradient in reference.items():
        torch.testing.assert_close(
            gradients[name], gradient, **GRADIENTS, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_the_window_hides_something() -> None:
    """Or the parity above would say nothing of local layers."""
    batch = tiny_batch(rows=3, length=20)
    logits = [
        tiny_model(**{**CASE.changes, "family": "modern", "local_attention": n})(batch)[
            "mlm_logits"
        ]
        for n in (4, 64)
    ]
    assert not torch.allclose(*logits, atol=1e-2)


def test_the_first_layer_has_no_norm_of_its_own_input() -> None:
    assert not any(
        name.startswith("encoder.layers.0.attention_input_norm")
        for name in CASE.ours(CASE.theirs()).state_dict()
    )


def test_fine_tuning_starts_from_the_head_of_pretraining() -> None:
    pretrained = CASE.ours(CASE.theirs()).state_dict()
    pooler = load_backbone(CASE.config, pretrained).pooler.state_dict()
    assert pooler["dense.weight"].equal(pretrained["pooler.dense.weight"])


def test_an_export_opens_and_comes_back_as_it_was(tmp_path: Path) -> None:
    directory = write_checkpoint(
        tmp_path / "checkpoint", tmp_path / "scratch", family="modern", **CASE.changes
    )
    result = execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "hub"))
    assert result.manifest.summary["max_logit_difference"] <= 1e-5
    assert result.manifest.summary["architecture"] == "ModernBertForMaskedLM"
    opened = transformers.AutoModelForMaskedLM.from_pretrained(
        str(tmp_path / "hub"), local_files_only=True
    )
    assert opened.config.layer_types == [
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ]
    assert (opened.config.sliding_window, opened.config.norm_eps) == (2, 1e-5)
    import_directory(str(tmp_path / "hub"), str(tmp_path / "back"))
    before, after = checkpoint.load(directory), checkpoint.load(str(tmp_path / "back"))
    assert after.model == before.model
    assert all(after.state[name].equal(tensor) for name, tensor in before.state.items())
    assert after.state.keys() == before.state.keys()


def test_what_transformers_saves_is_imported(tmp_path: Path) -> None:
    theirs = CASE.theirs()
    theirs.save_pretrained(str(tmp_path / "hub"))
    config = json.loads((tmp_path / "hub/config.json").read_text())
    assert CASE.hub.from_config(config, "config.json") == CASE.config


def test_configs_of_before_and_of_now_are_read() -> None:
    values = {
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 8e4,
        "local_rope_theta": 5e3,
        "num_hidden_layers": 5,
    }
    new = HUB.write(values)
    assert new["rope_parameters"]["full_attention"]["rope_theta"] == 8e4
    both = (
        {
            "layer_types": new["layer_types"],
            "rope_parameters": new["rope_parameters"],
            "num_hidden_layers": 5,
        },
        values,
    )
    for config in both:
        found = HUB.read(dict(config))
        assert {name: found[name] for name in values} == values


def test_what_the_family_cannot_do_is_refused() -> None:
    with pytest.raises(DataError, match="do not alternate"):
        HUB.read({"layer_types": ["sliding_attention", "full_attention"]})
    with pytest.raises(DataError, match="rope_type 'yarn'"):
        HUB.read({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}})
