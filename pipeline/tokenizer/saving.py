"""Tokenizer files for `cloze.pipeline.tokenizer.load` and transformers' `AutoTokenizer`.

`tokenizer.json` is complete. The other files are for older tools (`vocab.txt`; `vocab.json` and
`merges.txt`), and the config names transformers' class. A family's class rebuilds its tokenizer
from the vocabulary, so it is named only if the result is the same; otherwise transformers uses
`tokenizer.json` as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import tokenizers

from cloze.core import storage
from cloze.pipeline.tokenizer.backends import MAX_WORD_CHARACTERS, PairFrame
from cloze.pipeline.tokenizer.special import METASPACE, SpecialTokens, flatten_sequence

GENERIC = "PreTrainedTokenizerFast"
ENDS = ("bos_token", "eos_token")


def save(
    backend: tokenizers.Tokenizer,
    description: Mapping[str, Any],
    special: SpecialTokens,
    frame: PairFrame,
    directory: str,
) -> None:
    """Write the tokenizer's files, the same bytes for equal tokenizers.

    Args:
        backend: the tokenizer.
        description: parsed `tokenizer.json`.
        special: special tokens.
        frame: special tokens around pairs.
        directory: target directory.
    """
    names = {
        f"{role}_token": str(backend.id_to_token(number))
        for role, number in asdict(special).items()
    }
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    config = _transformers_config(
        description, names, framed_as_bert=frame == PairFrame((special.sep,), True)
    )
    model = description["model"]
    if model["type"] == "WordPiece":
        pieces = [""] * (max(vocab.values()) + 1)
        for piece, number in vocab.items():
            pieces[number] = piece
        storage.write_bytes(
            storage.join(directory, "vocab.txt"), "".join(f"{piece}\n" for piece in pieces).encode()
        )
    if config["tokenizer_class"] == "RobertaTokenizer":
        lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
        storage.write_bytes(
            storage.join(directory, "merges.txt"), "".join(f"{line}\n" for line in lines).encode()
        )
        ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
        storage.write_bytes(
            storage.join(directory, "vocab.json"),
            (json.dumps(ordered, ensure_ascii=False) + "\n").encode(),
        )
    _write_json(
        storage.join(directory, "special_tokens_map.json"),
        {key: value for key, value in config.items() if key in (*names, *ENDS)},
    )
    _write_json(storage.join(directory, "tokenizer_config.json"), config)
    storage.write_bytes(
        storage.join(directory, "tokenizer.json"), (backend.to_str(pretty=True) + "\n").encode()
    )


def _transformers_config(
    description: Mapping[str, Any], names: Mapping[str, str], *, framed_as_bert: bool
) -> dict[str, Any]:
    """Return `tokenizer_config.json`: the class that builds this tokenizer, and its settings."""
    model = description["model"]
    normalizer, splitter = description.get("normalizer"), description.get("pre_tokenizer") or {}
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


def _is_roberta(description: Mapping[str, Any]) -> bool:
    model, splitter = description["model"], description.get("pre_tokenizer") or {}
    post_processor = description.get("post_processor") or {}
    is_plain = not any(
        model.get(key)
        for key in (
            "dropout",
            "unk_token",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "byte_fallback",
            "ignore_merges",
        )
    )
    return (
        is_plain
        and description.get("normalizer") is None
        and splitter.get("type") == "ByteLevel"
        and bool(splitter.get("use_regex", True))
        and post_processor.get("type") == "RobertaProcessing"
        and bool(post_processor["trim_offsets"])
        and post_processor["add_prefix_space"] == splitter["add_prefix_space"]
    )


def _albert_switches(description: Mapping[str, Any]) -> dict[str, bool] | None:
    """Return AlbertTokenizer's switches if that class builds this tokenizer, else None."""
    splitters = list(flatten_sequence(description.get("pre_tokenizer")))
    if [step["type"] for step in splitters] != ["WhitespaceSplit", "Metaspace"]:
        return None
    metaspace = splitters[1]
    if (metaspace["replacement"], metaspace["prepend_scheme"], metaspace.get("split", True)) != (
        METASPACE,
        "always",
        True,
    ):
        return None
    if description["model"]["unk_id"] != 1:
        return None
    steps = list(flatten_sequence(description.get("normalizer")))
    quotes = [(step["pattern"], step["content"]) for step in steps[:2] if step["type"] == "Replace"]
    if quotes != [({"String": "``"}, '"'), ({"String": "''"}, '"')]:
        return None
    remaining = [step["type"] for step in steps[2:]]
    if remaining and remaining[-1] == "Replace" and steps[-1]["pattern"] == {"Regex": " {2,}"}:
        remaining.pop()  # many spaces to one: splitting at white space has the same effect
    if remaining and remaining[-1] == "Precompiled":
        remaining.pop()
    strips_accents, lowercases = (
        remaining[:2] == ["NFKD", "StripAccents"],
        remaining[-1:] == ["Lowercase"],
    )
    if remaining != [
        *(["NFKD", "StripAccents"] if strips_accents else []),
        *(["Lowercase"] if lowercases else []),
    ]:
        return None
    return {"do_lower_case": lowercases, "keep_accents": not strips_accents}


def _write_json(path: str, value: Any) -> None:
    storage.write_bytes(
        path, (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    )
