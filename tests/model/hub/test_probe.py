"""The random rows that are compared with transformers: a family gives them what its class looks
for, and all others are left as they are.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloze.model.families.hub_formats import exportable, hub_of
from cloze.model.hub.parity import LENGTHS, probe
from tests.tiny_models import PIECES, tiny_config, write_tokenizer


class Loaded:
    """A checkpoint without weights."""

    def __init__(self, family: str, heads: dict[str, Any], pieces: str = "") -> None:
        self.model = tiny_config(family=family, vocab_size=max(40, len(PIECES)))
        self.heads, self.tokenizer = heads, pieces


def lengths_of(batch: dict[str, torch.Tensor]) -> list[int]:
    return batch["attention_mask"].sum(dim=1).tolist()


@pytest.mark.parametrize("family", exportable())
def test_rows_are_valid_and_predicted_throughout(family: str) -> None:
    loaded: Any = Loaded(family, dict(tiny_config(family=family).heads))
    batch = probe(loaded)
    model, real = loaded.model, batch["attention_mask"]
    expected = [min(length, model.max_position_embeddings) for length in LENGTHS]
    assert lengths_of(batch) == expected
    assert batch["masked_positions"].tolist() == real.flatten().nonzero().squeeze(1).tolist()
    assert int(batch["input_ids"].max()) < model.vocab_size
    assert (batch["input_ids"] == model.pad_token_id).equal(~real)
    if model.is_encoder_decoder:  # classifiers read the state at the one end token
        for row, length in zip(batch["input_ids"], expected, strict=True):
            assert (row == model.eos_token_id).nonzero().flatten().tolist() == [length - 1]
    else:
        plain = hub_of(family).probe(model, {}, "", {"input_ids": batch["input_ids"]})
        assert plain["input_ids"] is batch["input_ids"], "nothing is adapted"


def test_longformers_questions_are_found_by_separators(tmp_path: Any) -> None:
    pieces = write_tokenizer(tmp_path)
    loaded: Any = Loaded("longformer", {"span": {}}, pieces)
    batch, plain = probe(loaded), probe(Loaded("longformer", {"masked_lm": {}}))  # type: ignore[arg-type]
    assert len(plain["input_ids"]) == len(LENGTHS)
    assert len(batch["input_ids"]) == sum(length >= 5 for length in LENGTHS)
    for row, length in enumerate(lengths_of(batch)):
        half = length // 2
        separators = (batch["input_ids"][row] == 3).nonzero().flatten().tolist()
        assert separators == [half, half + 1, length - 1]
        asked = batch["global_attention_mask"][row].nonzero().flatten().tolist()
        assert asked == list(range(half))


def test_a_new_family_says_what_its_class_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    from cloze.model.families import bert

    class FirstIsFive(bert.BertFormat):
        def probe(self, model: Any, heads: Any, pieces: str, batch: Any) -> Any:
            ids = batch["input_ids"].clone()
            ids[:, 0] = 5
            return {**batch, "input_ids": ids, "more": ids}

    monkeypatch.setattr(bert, "HUB", FirstIsFive())
    batch = probe(Loaded("bert", {"masked_lm": {}}))  # type: ignore[arg-type]
    assert (batch["input_ids"][:, 0] == 5).all()
    assert batch["more"] is batch["input_ids"]
