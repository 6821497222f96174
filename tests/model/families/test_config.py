"""The config refuses what cannot work, in one sentence, before torch is loaded; presets are the
papers' models.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from cloze.core.errors import UsageError
from cloze.core.options import field_docs
from cloze.model.families.config import ModelConfig, check_fits, for_dataset
from cloze.model.families.models import new_model
from cloze.model.families.registry import FAMILIES, config_class, model_config, parse_model, presets
from cloze.model.train.config import PretrainConfig
from cloze.pipeline.dataset.schema import DatasetInfo
from cloze.pipeline.tokenizer.special import SpecialTokens
from tests.tiny_models import tiny_config

INFO = DatasetInfo(
    recipe="bert",
    length=128,
    copies=10,
    vocab_size=8192,
    special=SpecialTokens(pad=3, unk=1, cls=2, sep=0, mask=4),
    pair_task="nsp",
    seed=7,
    tokenizer="0" * 64,
)


def test_indivisible_width_names_both_values_and_the_remedy() -> None:
    with pytest.raises(
        UsageError,
        match=r"hidden_size \(770\) must be divisible by num_attention_heads \(12\); use 768",
    ):
        model_config({"hidden_size": 770, "num_attention_heads": 12})
    with pytest.raises(UsageError, match=r"num_attention_heads \(12\); use 516, or 8 heads"):
        model_config({"hidden_size": 512})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"hiden_size": 128}, "did you mean 'hidden_size'"),
        ({"family": "bertt"}, "did you mean 'bert'"),
        ({"preset": "bert-bas"}, "did you mean 'bert-base'"),
        ({"num_hidden_layers": 0}, "model.num_hidden_layers"),
        ({"hidden_dropout": 1.0}, "model.hidden_dropout"),
        ({"hidden_act": "swish"}, "model.hidden_act"),
    ],
)
def test_faults_are_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        model_config(values)
    assert "\n" not in str(caught.value)


def test_values_start_from_a_preset_and_are_overridden() -> None:
    assert model_config("bert-mini").hidden_size == 256
    assert model_config(
        {"preset": "bert-mini", "hidden_dropout": 0.0}, num_hidden_layers=3
    ) == model_config("bert-mini", hidden_dropout=0.0, num_hidden_layers=3)
    assert model_config(model_config("bert-tiny")) == presets()["bert-tiny"]


@pytest.mark.parametrize(
    (
        "name",
        "millions",
    ),  # Turc et al. 2019, Table 1; bert-large as counted in the released checkpoint
    [
        ("bert-tiny", 4.4),
        ("bert-mini", 11.3),
        ("bert-small", 29.1),
        ("bert-medium", 41.7),
        ("bert-base", 110.1),
        ("bert-large", 336.2),
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, millions: float) -> None:
    with torch.device("meta"):
        model = new_model(model_config(name, vocab_size=30522))
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == millions


def test_an_open_vocabulary_is_taken_from_the_dataset_exactly() -> None:
    model = for_dataset(model_config("bert-tiny"), INFO)
    assert (model.vocab_size, model.pad_token_id) == (8192, 3)
    assert (
        for_dataset(tiny_config(vocab_size=9000, max_position_embeddings=128), INFO).vocab_size
        == 9000
    )


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"max_position_embeddings": 64}, ("64", "128", "max_position_embeddings")),
        ({"vocab_size": 100}, ("100", "8192", "vocab_size")),
    ],
)
def test_a_model_that_cannot_read_the_dataset_is_refused_with_both_values(
    changes: dict[str, int], names: tuple[str, ...]
) -> None:
    fitting = tiny_config(vocab_size=8192, max_position_embeddings=128)
    check_fits(fitting, INFO)
    with pytest.raises(UsageError) as caught:
        check_fits(fitting.model_copy(update=changes), INFO)
    assert all(name in str(caught.value) for name in names)


def test_building_with_an_open_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="vocab_size"):
        new_model(model_config("bert-tiny"))


def test_the_command_line_can_check_configs_without_torch() -> None:
    modules = (
        "cloze.model.families.registry, cloze.model.objectives, cloze.model.hub.stages, "
        "cloze.model.use.verb, cloze.model.use.stages"
    )
    program = (
        f"import sys, {modules}; cloze.model.families.registry.presets(); sys.exit(any(m in sys.modules for m in ('torch', 'numpy.fft', "
        f"'transformers')) * 7)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_every_option_of_a_family_describes_itself(family: str) -> None:
    """A default that a family changes keeps the description."""
    found = field_docs(config_class(family))
    assert list(found) == list(config_class(family).model_fields)
    assert (
        found["hidden_size"]
        == field_docs(ModelConfig)["hidden_size"]
        == "Width of the hidden states, D."
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_config_is_of_that_family_alone(family: str) -> None:
    assert config_class(family)().family == family
    assert parse_model(tiny_config(family=family).model_dump(mode="json")) == tiny_config(
        family=family
    )
    identity = PretrainConfig(model=config_class(family)()).fingerprint_fields()
    assert (
        identity["model"]["family"] == family
    )  # or two families at their defaults would be one to the fingerprint
    with pytest.raises(ValidationError, match="family"):
        config_class(family)(family="another")


@pytest.mark.parametrize("model", [-1, True, ["bert-mini"]])
def test_what_is_neither_name_nor_values_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match="is no name of a preset and no mapping of values"):
        PretrainConfig(model=model)


def test_a_family_that_is_not_there_is_told_by_name() -> None:
    with pytest.raises(
        UsageError, match=r"model family \('robertta'\) is unknown; did you mean 'roberta'"
    ):
        parse_model({"family": "robertta"})
