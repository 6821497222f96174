"""Reading tokenizers: vocab artifacts, Hugging Face directories, and the files of BERT's, GPT-2's, RoBERTa's and ALBERT's releases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import normalizers

from pipeline.core import storage
from pipeline.core.errors import DataError, UsageError
from pipeline.tokenizer import sentencepiece_model
from pipeline.tokenizer.backends import albert_backend, bert_backend, roberta_backend
from pipeline.tokenizer.files import TokenizerFiles, find
from pipeline.tokenizer.special import ROBERTA, SPECIAL_NAMES
from pipeline.tokenizer.tokenizer import Tokenizer

FILL_TO = 8  # fairseq pads a dictionary to a multiple of this, before the mask: data/dictionary.py, finalize
NUMBER_COMMA = 100.0  # off the score of pieces such as `9,`


def read(path: str, lowercase: bool | None = None) -> Tokenizer:
    """See `pipeline.tokenizer.load`."""
    files = find(path)
    readers = {"tokenizer.json": _tokenizer_json, "vocab.txt": _vocab_txt, "bpe": _bpe, "sentencepiece": _sentencepiece}
    return Tokenizer.of(readers[files.format](files, lowercase), files.vocabulary)


def _vocab_txt(files: TokenizerFiles, lowercase: bool | None) -> tokenizers.Tokenizer:
    """One piece a line, the id is the line's number, as in every BERT release."""
    path = files.vocabulary
    try:
        lines = storage.read_text(path).split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 at byte {error.start}; a vocab.txt has one piece a line") from error
    # Only line feeds end lines: some vocabularies hold other separators as pieces.
    vocab = {piece: number for number, line in enumerate(lines) if (piece := line.removesuffix("\r"))}
    if not vocab:
        raise DataError(f"{path} is empty; a vocab.txt has one piece a line")
    config = _config(files)
    if lowercase is None and config.get("do_lower_case") is not None:
        lowercase = bool(config["do_lower_case"])
    if lowercase is None:
        lowercase = not any(
            piece != piece.lower() for piece in vocab if not (piece.startswith(("[", "<")) and piece.endswith(("]", ">")))
        )
    return bert_backend(vocab, lowercase)


def _tokenizer_json(files: TokenizerFiles, lowercase: bool | None) -> tokenizers.Tokenizer:
    path = files.vocabulary
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
    return backend


def _bpe(files: TokenizerFiles, lowercase: bool | None) -> tokenizers.Tokenizer:
    """A byte-level BPE: the pieces' ids as JSON, the merges a line each. Without special tokens it gets RoBERTa's."""
    assert files.merges is not None
    vocab: dict[str, int] = _json(files.vocabulary)
    try:
        lines = storage.read_text(files.merges).split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{files.merges} is not UTF-8 at byte {error.start}; it holds two pieces a line") from error
    merges = []
    for number, line in enumerate(lines):
        if not line.strip() or line.startswith("#version"):
            continue
        left, space, right = line.removesuffix("\r").partition(" ")
        if not space or not left or not right or left + right not in vocab:
            raise DataError(
                f"{files.merges}, line {number + 1} ({line[:60]!r}) is no merge of two pieces of {files.vocabulary};"
                " use the two files of one tokenizer"
            )
        merges.append((left, right))
    if not any(name in vocab for names in SPECIAL_NAMES.values() for name in names):
        vocab = with_roberta_tokens(vocab)
    add_prefix_space = bool(_config(files).get("add_prefix_space", False))
    return roberta_backend(vocab, merges, lowercase=bool(lowercase), add_prefix_space=add_prefix_space)


def with_roberta_tokens(vocab: Mapping[str, int]) -> dict[str, int]:
    """GPT-2's pieces with RoBERTa's special tokens, placed as fairseq does: 50,257 pieces become 50,265.

    Four in front, the dictionary filled to a multiple of eight with `madeupword0000` and so on, the mask last. The pieces keep
    GPT-2's order; RoBERTa's release has them by their frequency in its corpus.
    """
    pieces = [*ROBERTA[:4], *sorted(vocab, key=lambda piece: vocab[piece])]
    pieces += [f"madeupword{number:04d}" for number in range(-len(pieces) % FILL_TO)]
    return {piece: number for number, piece in enumerate([*pieces, ROBERTA[4]])}


def _sentencepiece(files: TokenizerFiles, lowercase: bool | None) -> tokenizers.Tokenizer:
    """A Unigram model of SentencePiece, taken as ALBERT's; case and accents as the config beside it says.

    Pieces of a digit and a comma cost so much that they are never chosen, as google-research/albert, tokenization.py,
    encode_pieces cuts them again.
    """
    path = files.vocabulary
    with storage.open_input(path) as handle:
        model = sentencepiece_model.parse(handle.read(), path)
    if model.model_type != sentencepiece_model.UNIGRAM:
        kind = sentencepiece_model.MODEL_TYPES.get(model.model_type, str(model.model_type))
        raise DataError(
            f"{path} is a SentencePiece model of type {kind}, and only unigram ones are read;"
            " save the tokenizer as tokenizer.json (transformers' save_pretrained does) and name that"
        )
    if sentencepiece_model.UNKNOWN not in model.types:
        raise DataError(f"{path} has no piece for the unknown; use a model that has one")
    pieces = [
        (piece, score - NUMBER_COMMA if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() else score)
        for piece, score in model.pieces
    ]
    config = _config(files)
    if lowercase is None:
        lowercase = bool(config.get("do_lower_case", True))
    return albert_backend(
        pieces,
        model.types.index(sentencepiece_model.UNKNOWN),
        lowercase=lowercase,
        strip_accents=not config.get("keep_accents", False),
        charsmap=model.charsmap,
    )


def _config(files: TokenizerFiles) -> dict[str, Any]:
    """The directory's tokenizer_config.json, empty where there is none."""
    return _json(files.config) if files.config else {}


def _json(path: str) -> dict[str, Any]:
    try:
        content: Any = json.loads(storage.read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); mend or remove it") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not an object; mend or remove it")
    return content
