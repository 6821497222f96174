"""Presets are the papers' models: parameter counts equal transformers' for the same config, and the
papers' rounded figures.
"""

from __future__ import annotations

import pytest
import torch

from cloze.model.families.hub_formats import exportable, hub_of
from cloze.model.families.models import new_model
from cloze.model.families.registry import FAMILIES, presets
from tests.slices import few

transformers = pytest.importorskip(
    "transformers", reason="counts are compared with transformers, which is not installed"
)

VOCABULARIES = {
    "roberta": 50265,
    "albert": 30000,
    "spanbert": 28996,
    "longformer": 50265,
    "gpt2": 50257,
    "modern": 50368,
    "deberta": 128100,
}

PRESETS = presets()

# Millions, as the papers round them, where they count as we do: encoder and pooler, or (RoBERTa's)
# all.
PAPERS = {
    "bert-base": 110, "bert-large": 335, "roberta-base": 125, "roberta-large": 355,
    "electra-small": 14, "electra-base": 109, "electra-large": 334, "distilbert-base": 66,
    "gpt2": 124, "gpt2-medium": 355, "gpt2-large": 774, "gpt2-xl": 1558,
    "albert-base": 12, "albert-large": 18, "albert-xlarge": 59, "albert-xxlarge": 223,
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    few(
        [name for name, preset in PRESETS.items() if preset.family in exportable()],
        *(f"{family}-tiny" for family in exportable()),
    ),
)
def test_counts_are_those_of_transformers(name: str) -> None:
    preset = PRESETS[name]
    config = preset.model_copy(update={"vocab_size": VOCABULARIES.get(preset.family, 30522)})
    hub = hub_of(config.family)
    values = hub.to_config(config, config.heads, None)
    with torch.device("meta"):
        ours = new_model(config)
        theirs = getattr(transformers, hub.architecture(config.heads))(
            transformers.AutoConfig.for_model(**values)
        )
    if values.get("tie_word_embeddings") is False:  # T5's class ties them until it loads a file
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.detach().clone())
    exported = hub.exported(dict(ours.named_parameters()))
    expected = {
        name: p.numel()
        for name, p in theirs.named_parameters()
        if (drop := hub.drop_of(name, config)) is None or drop.copy_of
    }
    assert sum(parameter.numel() for parameter in exported.values()) == sum(expected.values())


@pytest.mark.parametrize(
    "name", few(PAPERS, "bert-base", "roberta-large", "electra-small", "gpt2", "albert-xxlarge")
)
def test_counts_are_those_of_the_papers(name: str) -> None:
    preset = PRESETS[name]
    with torch.device("meta"):
        ours = new_model(
            preset.model_copy(update={"vocab_size": VOCABULARIES.get(preset.family, 30522)})
        )
    backbone = sum(
        p.numel() for key, p in ours.named_parameters() if key.startswith(("encoder.", "pooler."))
    )
    counted = sum(p.numel() for p in ours.parameters()) if preset.family == "roberta" else backbone
    assert round(counted / 1e6) == pytest.approx(PAPERS[name], abs=1)


def test_every_family_has_a_tiny_preset() -> None:
    for family in FAMILIES:
        config = PRESETS[f"{family}-tiny"]
        layers = 0 if family == "static" else 2
        assert (config.family, config.num_hidden_layers, config.hidden_size) == (
            family,
            layers,
            128,
        )


def test_a_preset_is_named_after_its_family_and_only_once() -> None:
    assert len(PRESETS) == sum(len(FAMILIES.find(family).PRESETS) for family in FAMILIES)
    assert all(f"{name}-".startswith(f"{config.family}-") for name, config in PRESETS.items())
