"""Tokenizer files for `cloze.pipeline.tokenizer.load` and transformers' `AutoTokenizer`.

`tokenizer.json` is complete. The other files are for older tools (`vocab.txt`; `vocab.json` and
`merges.txt`), and the config names transformers' class. A family's class rebuilds its tokenizer
from the vocabulary, so it is named only if the result is the same; otherwise transformers uses
`tokenizer.json` as it is.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cloze.core import storage
from cloze.pipeline.tokenizer.backends import MAX_WORD_CHARACTERS, PairFrame, albert_backend
from cloze.pipeline.tokenizer.special import ALBERT, SpecialTokens, flatten_sequence

if TYPE_CHECKING:
    import tokenizers

GENERIC = "PreTrainedTokenizerFast"
ENDS = ("bos_token", "eos_token")


def save(
    backend: tokenizers.Tokenizer, special: SpecialTokens, frame: PairFrame, directory: str
) -> None:
    """Write a tokenizer's files into `directory`, the same bytes for equal tokenizers."""
    description = json.loads(backend.to_str())
    names = {f"{role}_token": str(backend.id_to_token(i)) for role, i in asdict(special).items()}
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    is_framed = frame == PairFrame((special.sep,), True)
    config = _transformers_config(description, names, framed_as_bert=is_framed)
    model = description["model"]
    files = {}
    if model["type"] == "WordPiece":
        pieces = [""] * (max(vocab.values()) + 1)
        for piece, number in vocab.items():
            pieces[number] = piece
        files["vocab.txt"] = "\n".join(pieces)
    if config["tokenizer_class"] == "RobertaTokenizer":
        files["merges.txt"] = "\n".join(["#version: 0.2", *map(" ".join, model["merges"])])
        ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
        files["vocab.json"] = json.dumps(ordered, ensure_ascii=False)
    special_map = {key: value for key, value in config.items() if key in (*names, *ENDS)}
    files["special_tokens_map.json"] = _json(special_map)
    files["tokenizer_config.json"] = _json(config)
    files["tokenizer.json"] = backend.to_str(pretty=True)
    for name, text in files.items():
        storage.write_bytes(storage.join(directory, name), f"{text}\n".encode())


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def _transformers_config(
    description: Mapping[str, Any], names: Mapping[str, str], *, framed_as_bert: bool
) -> dict[str, Any]:
    """Return `tokenizer_config.json`: the class that builds this tokenizer, and its settings."""
    model = description["model"]
    normalizer, splitter = description.get("normalizer"), description.get("pre_tokenizer") or {}
    if names["cls_token"] == names["pad_token"]:  # T5
        own = {role: names[role] for role in ("pad_token", "unk_token")}
        return {"tokenizer_class": GENERIC, **own, "eos_token": names["sep_token"]}
    family = {**names, "bos_token": names["cls_token"], "eos_token": names["sep_token"]}
    match model["type"]:
        case "WordPiece" if framed_as_bert and _is_bert(model, normalizer, splitter):
            assert normalizer is not None
            return {
                "tokenizer_class": "BertTokenizer",
                **names,
                "do_lower_case": normalizer["lowercase"],
                "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
                "strip_accents": normalizer["strip_accents"],
            }
        case "BPE" if _is_roberta(description):
            return {
                "tokenizer_class": "RobertaTokenizer",
                **family,
                "add_prefix_space": splitter["add_prefix_space"],
                "trim_offsets": True,
            }
        case "Unigram" if (
            framed_as_bert and (switches := _albert_switches(description)) is not None
        ):
            return {"tokenizer_class": "AlbertTokenizer", **family, **switches}
    return {"tokenizer_class": GENERIC, **names}


def _is_bert(
    model: Mapping[str, Any], normalizer: Mapping[str, Any] | None, splitter: Mapping[str, Any]
) -> bool:
    return (
        normalizer is not None
        and normalizer["type"] == "BertNormalizer"
        and bool(normalizer["clean_text"])
        and splitter.get("type") == "BertPreTokenizer"
        and model["continuing_subword_prefix"] == "##"
        and model["max_input_chars_per_word"] == MAX_WORD_CHARACTERS
    )


_OTHER_SETTINGS = (
    "dropout unk_token continuing_subword_prefix end_of_word_suffix byte_fallback ignore_merges"
).split()


def _is_roberta(description: Mapping[str, Any]) -> bool:
    model, splitter = description["model"], description.get("pre_tokenizer") or {}
    post_processor = description.get("post_processor") or {}
    return (
        not any(map(model.get, _OTHER_SETTINGS))
        and description.get("normalizer") is None
        and splitter.get("type") == "ByteLevel"
        and bool(splitter.get("use_regex", True))
        and post_processor.get("type") == "RobertaProcessing"
        and bool(post_processor["trim_offsets"])
        and post_processor["add_prefix_space"] == splitter["add_prefix_space"]
    )


def _albert_switches(description: Mapping[str, Any]) -> dict[str, bool] | None:
    """Return AlbertTokenizer's switches if that class builds this tokenizer, else None."""
    steps = list(flatten_sequence(description.get("normalizer")))
    # many spaces to one: splitting at white space has the same effect
    if steps and steps[-1]["type"] == "Replace" and steps[-1]["pattern"] == {"Regex": " {2,}"}:
        steps.pop()
    if steps and steps[-1]["type"] == "Precompiled":  # the model's own map
        steps.pop()
    splitters = list(flatten_sequence(description.get("pre_tokenizer")))
    special = [(token, 0.0) for token in ALBERT]
    for lowercase, strip_accents in itertools.product((True, False), repeat=2):
        twin = json.loads(albert_backend(special, 1, lowercase, strip_accents).to_str())
        if (
            steps == list(flatten_sequence(twin["normalizer"]))
            and splitters == list(flatten_sequence(twin["pre_tokenizer"]))
            and description["model"]["unk_id"] == 1
        ):
            return {"do_lower_case": lowercase, "keep_accents": not strip_accents}
    return None
