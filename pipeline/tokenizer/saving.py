"""A tokenizer's files: what `pipeline.tokenizer.load` and transformers' `AutoTokenizer` open.

`tokenizer.json` says everything. Beside it stand the files that older tools read (`vocab.txt`; `vocab.json` and `merges.txt`), and
the config that names transformers' class. A family's class builds its tokenizer anew from the pieces, so it is
named only where it builds the same one; else transformers takes `tokenizer.json` as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import tokenizers

from pipeline.core import storage
from pipeline.tokenizer.backends import MAX_WORD_CHARACTERS
from pipeline.tokenizer.special import METASPACE, SpecialTokens, leaves

GENERIC = "PreTrainedTokenizerFast"
ENDS = ("bos_token", "eos_token")


def save(backend: tokenizers.Tokenizer, description: Mapping[str, Any], special: SpecialTokens, directory: str) -> None:
    """Write the tokenizer's files: the same bytes for equal tokenizers.

    Args:
        backend: the tokenizer.
        description: its `tokenizer.json`, parsed.
        special: its special tokens.
        directory: where to.
    """
    names = {f"{role}_token": str(backend.id_to_token(number)) for role, number in asdict(special).items()}
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    config = transformers_config(description, names)
    model = description["model"]
    if model["type"] == "WordPiece":
        pieces = [""] * (max(vocab.values()) + 1)
        for piece, number in vocab.items():
            pieces[number] = piece
        storage.write_bytes(storage.join(directory, "vocab.txt"), "".join(f"{piece}\n" for piece in pieces).encode())
    if config["tokenizer_class"] == "RobertaTokenizer":
        lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
        storage.write_bytes(storage.join(directory, "merges.txt"), "".join(f"{line}\n" for line in lines).encode())
        ordered = dict(sorted(vocab.items(), key=lambda item: item[1]))
        storage.write_bytes(storage.join(directory, "vocab.json"), (json.dumps(ordered, ensure_ascii=False) + "\n").encode())
    _write_json(storage.join(directory, "special_tokens_map.json"), {k: v for k, v in config.items() if k in (*names, *ENDS)})
    _write_json(storage.join(directory, "tokenizer_config.json"), config)
    storage.write_bytes(storage.join(directory, "tokenizer.json"), (backend.to_str(pretty=True) + "\n").encode())


def transformers_config(description: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """`tokenizer_config.json`: the class that builds this very tokenizer, and what it must be told."""
    model = description["model"]
    normalizer, splitter = description.get("normalizer"), description.get("pre_tokenizer") or {}
    family = {**names, "bos_token": names["cls_token"], "eos_token": names["sep_token"]}
    match model["type"]:
        case "WordPiece" if _is_bert(model, normalizer, splitter):
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
        case "Unigram" if (switches := _albert_switches(description)) is not None:
            return {"tokenizer_class": "AlbertTokenizer", **family, **switches}
    return {"tokenizer_class": GENERIC, **names}


def _is_bert(model: Mapping[str, Any], normalizer: Mapping[str, Any] | None, splitter: Mapping[str, Any]) -> bool:
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
    ends = description.get("post_processor") or {}
    plain = not any(
        model.get(key)
        for key in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    )
    return (
        plain
        and description.get("normalizer") is None
        and splitter.get("type") == "ByteLevel"
        and bool(splitter.get("use_regex", True))
        and ends.get("type") == "RobertaProcessing"
        and bool(ends["trim_offsets"])
        and ends["add_prefix_space"] == splitter["add_prefix_space"]
    )


def _albert_switches(description: Mapping[str, Any]) -> dict[str, bool] | None:
    """`do_lower_case` and `keep_accents` if AlbertTokenizer builds this tokenizer from its pieces, else None."""
    splitters = list(leaves(description.get("pre_tokenizer")))
    if [step["type"] for step in splitters] != ["WhitespaceSplit", "Metaspace"]:
        return None
    space = splitters[1]
    if (space["replacement"], space["prepend_scheme"], space.get("split", True)) != (METASPACE, "always", True):
        return None
    if description["model"]["unk_id"] != 1 or (description.get("post_processor") or {}).get("type") != "TemplateProcessing":
        return None
    steps = list(leaves(description.get("normalizer")))
    quotes = [(step["pattern"], step["content"]) for step in steps[:2] if step["type"] == "Replace"]
    if quotes != [({"String": "``"}, '"'), ({"String": "''"}, '"')]:
        return None
    rest = [step["type"] for step in steps[2:]]
    if rest and rest[-1] == "Replace" and steps[-1]["pattern"] == {"Regex": " {2,}"}:
        rest.pop()  # many spaces to one: the split at white space does it too
    if rest and rest[-1] == "Precompiled":
        rest.pop()
    strip, lower = rest[:2] == ["NFKD", "StripAccents"], rest[-1:] == ["Lowercase"]
    if rest != [*(["NFKD", "StripAccents"] if strip else []), *(["Lowercase"] if lower else [])]:
        return None
    return {"do_lower_case": lower, "keep_accents": not strip}


def _write_json(path: str, value: Any) -> None:
    storage.write_bytes(path, (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode())
