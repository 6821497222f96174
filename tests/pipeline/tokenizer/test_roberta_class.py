"""Which BPE is written as RoBERTa's class: one that this class builds, and no other."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cloze.pipeline.tokenizer.saving import _is_roberta

PLAIN: dict[str, Any] = {
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False},
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "post_processor": {
        "type": "RobertaProcessing",
        "trim_offsets": True,
        "add_prefix_space": False,
    },
}


def changed(part: str, **values: Any) -> dict[str, Any]:
    description = copy.deepcopy(PLAIN)
    description[part] = {**(description[part] or {}), **values}
    return description


def test_a_plain_one_is() -> None:
    assert _is_roberta(PLAIN)
    with_space = changed("pre_tokenizer", add_prefix_space=True)
    with_space["post_processor"]["add_prefix_space"] = True
    assert _is_roberta(with_space)
    del with_space["pre_tokenizer"]["use_regex"]
    assert _is_roberta(with_space), "its default"


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("model", {"dropout": 0.1}),
        ("model", {"unk_token": "<unk>"}),
        ("model", {"continuing_subword_prefix": "##"}),
        ("model", {"end_of_word_suffix": "</w>"}),
        ("model", {"byte_fallback": True}),
        ("model", {"ignore_merges": True}),
        ("normalizer", {"type": "NFC"}),
        ("pre_tokenizer", {"type": "Whitespace"}),
        ("pre_tokenizer", {"use_regex": False}),
        ("pre_tokenizer", {"add_prefix_space": True}),
        ("post_processor", {"type": "TemplateProcessing"}),
        ("post_processor", {"trim_offsets": False}),
        ("post_processor", {"add_prefix_space": True}),
    ],
)
def test_another_is_not(part: str, values: dict[str, Any]) -> None:
    assert not _is_roberta(changed(part, **values))


@pytest.mark.parametrize("part", ["pre_tokenizer", "post_processor"])
def test_one_without_a_part_is_not(part: str) -> None:
    assert not _is_roberta({**PLAIN, part: None})
