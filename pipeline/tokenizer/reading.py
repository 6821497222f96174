"""Reading tokenizers: vocab artifacts, `vocab.txt`, `tokenizer.json`, Hugging Face directories."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pipeline import artifact, stage, storage
from pipeline.errors import DataError, UsageError
from pipeline.tokenizer.tokenizer import SPECIAL_NAMES, Tokenizer

MAX_WORD_CHARACTERS = 100  # a longer word is [UNK]: google-research/bert's tokenization.py says 200, transformers 100


def read(path: str, lowercase: bool | None = None) -> Tokenizer:
    """See `pipeline.tokenizer.load`."""
    if not storage.exists(path):
        raise DataError(
            f"{path} does not exist; name a vocab artifact, a vocab.txt, a tokenizer.json or a Hugging Face directory"
        )
    if not storage.is_dir(path):
        return _from_json(path, lowercase) if path.endswith(".json") else _from_vocab_txt(path, lowercase)
    if storage.exists(storage.join(path, stage.BUILDING)) and not artifact.is_artifact(path):
        raise DataError(f"{path} holds an unfinished artifact; run the stage that makes it again")
    if storage.exists(storage.join(path, "tokenizer.json")):
        return _from_json(storage.join(path, "tokenizer.json"), lowercase)
    if storage.exists(storage.join(path, "vocab.txt")):
        return _from_vocab_txt(storage.join(path, "vocab.txt"), _configured_case(path) if lowercase is None else lowercase)
    raise DataError(f"{path} holds neither tokenizer.json nor vocab.txt; name a directory that has one of them")


def bert_backend(vocab: dict[str, int], lowercase: bool) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer as BERT's: `[CLS] A [SEP] B [SEP]`, accents stripped where case is."""
    names = {role: next((name for name in choices if name in vocab), choices[0]) for role, choices in SPECIAL_NAMES.items()}
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            vocab, unk_token=names["unk"], continuing_subword_prefix="##", max_input_chars_per_word=MAX_WORD_CHARACTERS
        )
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    backend.add_special_tokens([name for name in names.values() if name in vocab])
    cls, sep = names["cls"], names["sep"]
    if cls in vocab and sep in vocab:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
        )
    return backend


def _from_vocab_txt(path: str, lowercase: bool | None) -> Tokenizer:
    """One piece a line, the id is the line's number, as in every BERT release."""
    try:
        lines = storage.read_text(path).split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 at byte {error.start}; a vocab.txt has one piece a line") from error
    # Only line feeds end lines: some vocabularies hold other separators as pieces.
    vocab = {piece: number for number, line in enumerate(lines) if (piece := line.removesuffix("\r"))}
    if not vocab:
        raise DataError(f"{path} is empty; a vocab.txt has one piece a line")
    if lowercase is None:
        lowercase = not any(
            piece != piece.lower() for piece in vocab if not (piece.startswith(("[", "<")) and piece.endswith(("]", ">")))
        )
    return Tokenizer.of(bert_backend(vocab, lowercase), path)


def _from_json(path: str, lowercase: bool | None) -> Tokenizer:
    try:
        text = storage.read_text(path)
        backend = tokenizers.Tokenizer.from_str(text)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 at byte {error.start}; a tokenizer.json is JSON") from error
    except Exception as error:  # the library raises bare Exceptions for whatever it cannot parse
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} is no tokenizer.json that tokenizers {tokenizers.__version__} reads ({error}); save it again"
        ) from error
    if lowercase is not None:
        normalizer = json.loads(text).get("normalizer") or {}
        if normalizer.get("type") != "BertNormalizer":
            found = normalizer.get("type", "none")
            raise UsageError(f"lowercase ({lowercase}) cannot be set for {path}, whose normalizer is {found}; leave it out")
        values = {key: value for key, value in normalizer.items() if key != "type"}
        backend.normalizer = normalizers.BertNormalizer(**{**values, "lowercase": lowercase})
    return Tokenizer.of(backend, path)


def _configured_case(directory: str) -> bool | None:
    """`do_lower_case` of a directory's tokenizer_config.json, if it says so."""
    path = storage.join(directory, "tokenizer_config.json")
    if not storage.exists(path):
        return None
    try:
        content: Any = json.loads(storage.read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); mend or remove it") from error
    value = content.get("do_lower_case") if isinstance(content, dict) else None
    return bool(value) if value is not None else None
