"""Presets are the papers' models: parameter counts equal transformers' for the same config, and the papers' rounded figures."""

from __future__ import annotations

import pytest
import torch

from model.families.presets import MODELS
from model.families.table import FAMILIES, build
from model.hub.table import HUBS, hub_of

transformers = pytest.importorskip("transformers", reason="counts are compared with transformers, which is not installed")

VOCABULARIES = {"roberta": 50265, "albert": 30000, "spanbert": 28996, "longformer": 50265, "modern": 50368}

# Millions, as the papers round them, where they count as we do: encoder and pooler, or (RoBERTa's) all.
PAPERS = {
    "bert-base": 110, "bert-large": 335, "roberta-base": 125, "roberta-large": 355,
    "electra-small": 14, "electra-base": 109, "electra-large": 334, "distilbert-base": 66,
    "albert-base": 12, "albert-large": 18, "albert-xlarge": 59, "albert-xxlarge": 223,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, preset in MODELS.items() if preset().family in HUBS])
def test_counts_are_those_of_transformers(name: str) -> None:
    preset = MODELS[name]()
    config = preset.model_copy(update={"vocab_size": VOCABULARIES.get(preset.family, 30522)})
    hub = hub_of(config.family)
    values = hub.to_config(config, config.heads, None)
    with torch.device("meta"):
        ours = build(config)
        theirs = getattr(transformers, values["architectures"][0])(transformers.AutoConfig.for_model(**values))
    exported = hub.exported(dict(ours.named_parameters()))
    expected = {name: p.numel() for name, p in theirs.named_parameters() if not name.startswith(hub.unused or "?")}
    assert sum(parameter.numel() for parameter in exported.values()) == sum(expected.values())


@pytest.mark.parametrize("name", PAPERS)
def test_counts_are_those_of_the_papers(name: str) -> None:
    preset = MODELS[name]()
    with torch.device("meta"):
        ours = build(preset.model_copy(update={"vocab_size": VOCABULARIES.get(preset.family, 30522)}))
    backbone = sum(p.numel() for key, p in ours.named_parameters() if key.startswith(("encoder.", "pooler.")))
    counted = sum(p.numel() for p in ours.parameters()) if preset.family == "roberta" else backbone
    assert round(counted / 1e6) == pytest.approx(PAPERS[name], abs=1)


def test_every_family_has_a_tiny_preset() -> None:
    tiny = {MODELS[name]().family: MODELS[name]() for name in MODELS if name.endswith("-tiny")}
    assert tiny.keys() >= FAMILIES.keys() - {"megatron-bert"}
    for config in tiny.values():
        assert (config.num_hidden_layers, config.hidden_size) == (2, 128)
