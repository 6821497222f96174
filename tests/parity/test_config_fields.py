"""A field of config.json that changes what transformers computes is honoured or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cloze.core.errors import ClozeError, DataError
from cloze.model.families.hub_format import REQUIRED, TIED
from cloze.model.families.hub_formats import formats, hub_of
from cloze.model.families.models import load_model
from cloze.model.hub.read import complete, read_directory
from cloze.model.tensors import read_tensors, write_tensors
from tests.parity.families import (
    FIRST,
    Alone,
    Case,
    at_real,
    batch_of,
    case_id,
    their_inputs,
    their_logits,
)

# Without a part in the computation, or checked elsewhere: names of classes, labels, outputs.
SKIPPED = {
    "architectures", "model_type", "transformers_version", "dtype", "_name_or_path", "id2label",
    "label2id", "problem_type", "cloze_model", "cloze_task", "chunk_size_feed_forward",
    "output_attentions", "output_hidden_states", "return_dict", "vocab_size", TIED,
    "legacy",  # DeBERTa's: which names the head's weights have
}  # fmt: skip
ACTIVATIONS = ("hidden_act", "activation", "activation_function", "hidden_activation", "conv_act",
               "ff_activation")  # fmt: skip
OTHERS = {
    **{name: ["relu"] for name in ACTIVATIONS},
    "norm_rel_ebd": ["none", "layer_norm"],
    "attn_type": ["uni"],
}


def other_values(name: str, value: Any) -> list[Any]:
    if name in OTHERS:
        return [other for other in OTHERS[name] if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2] if value > 0 else [value + 1, value + 3]
    if isinstance(value, float):
        return [value * 10 + 0.3]
    return [value[:-1], value[::-1]] if isinstance(value, list) and value else []


def changed(case: Case, base: Any, name: str, value: Any) -> Any:
    """Their model with the changed config and the weights that fit; None: there is no such model.

    What a change does to ELECTRA's generator is not seen: their class has none.
    """
    config = {key: own for key, own in base.config.to_dict().items() if key != "model_type"}
    torch.manual_seed(1)
    try:
        inner = base.base_model_prefix if isinstance(base, Alone) else ""
        kind = type(getattr(base, inner) if inner else base)
        model = kind(type(base.config)(**{**config, name: value})).eval()
        model = Alone(model) if inner else model
        model.load_state_dict(base.state_dict(), strict=False)
    except Exception:  # transformers' own checks, of many kinds
        return None
    return model


def answers(case: Case, model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor] | None:
    try:
        with torch.no_grad():
            return their_logits(case, model(**their_inputs(model, batch)), batch)
    except Exception:  # rows that such a model cannot read
        return None


def agree(found: dict[str, Tensor], expected: dict[str, Tensor], batch: dict[str, Tensor]) -> bool:
    return all(
        found[name].shape == logits.shape
        and torch.allclose(at_real(found[name], batch), at_real(logits, batch), atol=1e-4)
        for name, logits in expected.items()
    )


def silent(case: Case) -> Iterator[str]:
    """Fields that change their logits and not ours."""
    base, hub, heads = case.theirs(), case.hub, case.config.heads
    batch = batch_of(case, 3, 12)
    del batch["masked_labels"]  # nothing is replaced or scored
    before = answers(case, base, batch)
    assert before
    tried = 0
    for name, value in base.config.to_dict().items():
        for other in other_values(name, value) if name not in SKIPPED else ():
            model = changed(case, base, name, other)
            after = answers(case, model, batch) if model is not None else None
            if not after or agree(after, before, batch):
                continue
            tried += 1
            names = {"model_type": hub.model_type, "architectures": [hub.architecture(heads)]}
            config = {**base.config.to_dict(), name: other, **names}
            try:
                ours = hub.from_config(config, "config.json")
                state = hub.from_state(model.state_dict(), "weights", None, ours)
                state = hub.fill(ours, config, state)
                network = load_model(ours, complete(ours, state).state).eval()
            except ClozeError:
                continue
            with torch.no_grad():
                if not agree(network(batch), after, batch):
                    yield f"{name}: {value!r} -> {other!r}"
    assert tried > 2


@pytest.mark.parametrize("case", FIRST, ids=case_id)
def test_what_changes_their_logits_changes_ours_or_is_refused(case: Case) -> None:
    assert list(silent(case)) == []


@pytest.mark.parametrize("hub", formats(), ids=lambda hub: f"{hub.family}-{hub.model_type}")
@pytest.mark.parametrize(
    ("name", "value"),
    [("position_embedding_type", "relative_key"), ("add_cross_attention", True),
     ("pruned_heads", {"0": [1]})],
)  # fmt: skip
def test_what_older_transformers_computed_is_refused(hub: Any, name: str, value: Any) -> None:
    """Version 5 ignores relative_key, so that its logits do not show the difference."""
    assert name in REQUIRED
    config = {"model_type": hub.model_type, "vocab_size": 100, **hub.fixed, name: value}
    with pytest.raises(DataError, match=rf"{name} .*; use another model"):
        hub.from_config(config, "config.json")


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "albert", "distilbert", "modern", "deberta", "gpt2", "xlnet"]
)
def test_a_matrix_of_its_own_that_is_missing_is_missed(family: str, tmp_path: Any) -> None:
    case = next(case for case in FIRST if case.family == family)
    theirs = case.theirs()
    theirs.config.architectures = [type(theirs).__name__]
    theirs.save_pretrained(tmp_path)
    read_directory(str(tmp_path))  # tied, as it says
    config = (tmp_path / "config.json").read_text()
    line = '"tie_word_embeddings": '
    untied = config.replace(line + "true", line + "false")
    if line not in config:
        untied = config.replace("{", "{" + line + "false,", 1)
    (tmp_path / "config.json").write_text(untied)
    with pytest.raises(DataError, match="lack the head's own matrix"):
        read_directory(str(tmp_path))
    file = str(tmp_path / "model.safetensors")
    state = read_tensors(file)
    words = hub_of(family).keys.to_hf("encoder.embeddings.word.weight")
    copy = next(drop.names for drop in hub_of(family).drops if drop.copy_of == words)
    state[copy] = state[str(words)].clone()
    write_tensors(file, state)
    read_directory(str(tmp_path))
