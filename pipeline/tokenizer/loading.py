"""Find and read a tokenizer's files.

Formats: `tokenizer.json` (Hugging Face tokenizers), `vocab.txt` (BERT), a byte-level BPE vocabulary
with its merges (GPT-2 and RoBERTa), and a SentencePiece model (ALBERT).
"""

from __future__ import annotations

import functools
import json
import os
import posixpath
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import tokenizers
from tokenizers import normalizers

from cloze.core import storage
from cloze.core.artifacts import artifact, claim, fingerprints
from cloze.core.errors import DataError, UsageError
from cloze.pipeline.tokenizer import backends, sentencepiece_model
from cloze.pipeline.tokenizer.backends import (
    albert_backend,
    bert_backend,
    named_as_t5,
    roberta_backend,
    t5_backend,
)
from cloze.pipeline.tokenizer.special import (
    END_OF_TEXT,
    METASPACE,
    ROBERTA,
    SENTINEL,
    SPECIAL_NAMES,
)
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

OF_CHECKPOINT = "tokenizer"  # directory of a checkpoint or dataset
CONFIG, MODEL_CONFIG = "tokenizer_config.json", "config.json"
# Released names of a BPE's vocabulary and merges: transformers', OpenAI's, and with a prefix.
BPE_NAMES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
    ("-vocab.json", "-merges.txt"),
    ("_encoder.json", "_vocab.bpe"),
    ("_bpe_encoder.json", "_bpe_vocab.bpe"),
)
SENTENCEPIECE_NAMES = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")

Format = Literal["tokenizer.json", "vocab.txt", "bpe", "sentencepiece"]
# format and files of a tokenizer in a directory, in search order
DIRECTORY_FILES: tuple[tuple[Format, tuple[str, ...]], ...] = (
    ("tokenizer.json", ("tokenizer.json",)),
    ("vocab.txt", ("vocab.txt",)),
    *(("bpe", names) for names in BPE_NAMES[:2]),
    *(("sentencepiece", (name,)) for name in SENTENCEPIECE_NAMES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The files of one tokenizer."""

    format: Format  # file format
    vocabulary: str  # file with the tokens
    merges: str | None = None  # file with the merges of a BPE, else None
    config: str | None = None  # `tokenizer_config.json` of the directory, if it exists


def find(path: str) -> TokenizerFiles:
    """Return the tokenizer files at `path`, a directory or the file with the tokens.

    Of a checkpoint, or an artifact that contains one, they are those of its tokenizer.

    Raises:
        DataError: `path` does not exist or is no tokenizer, or the merges are missing.
    """
    names = storage.list_names(path)
    if not names:
        if not storage.exists(path):
            raise DataError(
                f"{path} does not exist; give a vocab artifact, a vocab.txt, a tokenizer.json or "
                f"a Hugging Face directory"
            )
        if not storage.is_dir(path):
            return _file(path)
    if claim.BUILDING in names and artifact.MANIFEST not in names:
        raise DataError(
            f"{path} contains an unfinished artifact; run the stage that makes it again"
        )
    inside = ""
    if artifact.MANIFEST in names:
        inside = str(artifact.read_manifest(path).summary.get("checkpoint") or "")
    if inside:
        path = storage.join(path, inside)
        names = storage.list_names(path)
    if OF_CHECKPOINT in names:
        path = storage.join(path, OF_CHECKPOINT)
        names = storage.list_names(path)
    files = _find_in_directory(path, names)
    return replace(files, config=storage.join(path, CONFIG)) if CONFIG in names else files


def _find_in_directory(path: str, present: list[str]) -> TokenizerFiles:
    for file_format, names in DIRECTORY_FILES:
        vocabulary, *merges = (storage.join(path, name) for name in names)
        if names[0] in present:
            if merges:
                return _bpe_files(vocabulary, merges[0])
            return TokenizerFiles(format=file_format, vocabulary=vocabulary)
    raise DataError(
        f"{path} has no tokenizer.json, vocab.txt, vocab.json with merges.txt, or spiece.model; "
        f"give a directory that has one of them, or the file itself"
    )


def fingerprint(path: str) -> str:
    """Return an artifact's fingerprint, else a hash of the files' contents without their names.

    Raises:
        DataError: as in `find`.
    """
    if artifact.is_artifact(path):
        return artifact.read_manifest(path).fingerprint
    files = find(path)
    names = {"vocabulary": files.vocabulary, "merges": files.merges, "config": files.config}
    present = {role: name for role, name in names.items() if name is not None}
    hashes = fingerprints.file_hashes(present.values())
    pairs = [("format", files.format), *((role, hashes[name]) for role, name in present.items())]
    return fingerprints.combine_hashes(pairs)


def _file(path: str) -> TokenizerFiles:
    if path.endswith(".model"):
        return TokenizerFiles(format="sentencepiece", vocabulary=path)
    if not path.endswith(".json"):
        return TokenizerFiles(format="vocab.txt", vocabulary=path)
    if path.endswith("tokenizer.json") or not _is_plain_vocabulary(path):
        return TokenizerFiles(format="tokenizer.json", vocabulary=path)
    directory, name = posixpath.split(path)
    candidates = []
    for vocabulary, merges in BPE_NAMES:
        is_suffix = vocabulary.startswith(("-", "_"))
        if name == vocabulary or (is_suffix and name.endswith(vocabulary)):
            candidates.append(posixpath.join(directory, name.removesuffix(vocabulary) + merges))
    for file in candidates:
        if storage.exists(file):
            return _bpe_files(path, file)
    missing = "merges.txt (and name the vocabulary vocab.json)"
    if candidates:
        missing = posixpath.basename(candidates[0])
    raise DataError(
        f"{path} has tokens without merges; put the tokenizer's {missing} into its directory"
    )


def _bpe_files(vocabulary: str, merges: str) -> TokenizerFiles:
    if not storage.exists(merges):
        raise DataError(f"{merges} does not exist; copy it there: {vocabulary} needs its merges")
    return TokenizerFiles(format="bpe", vocabulary=vocabulary, merges=merges)


def _is_plain_vocabulary(path: str) -> bool:
    """Return whether a JSON file maps tokens to ids, as a BPE's vocabulary does."""
    try:
        content = storage.read_json(path)
    except DataError:  # its reader reports the error
        return False
    return bool(content) and all(isinstance(value, int) for value in content.values())


# Readers of the formats.

# fairseq pads the dictionary to a multiple of this, before the mask: data/dictionary.py, finalize
FILL_TO = 8
NUMBER_COMMA = 100.0  # subtracted from the score of tokens such as `9,`


def read(path: str, lowercase: bool | None = None) -> Tokenizer:
    """Implement `cloze.pipeline.tokenizer.load`."""
    files = find(path)
    readers = {
        "tokenizer.json": _tokenizer_json,
        "vocab.txt": _vocab_txt,
        "bpe": _bpe,
        "sentencepiece": _sentencepiece,
    }
    backend = named_as_t5(readers[files.format](files, lowercase))
    return Tokenizer.of(backend, files.vocabulary)


@functools.lru_cache(maxsize=2)
def shared_tokenizer(path: str, fingerprint: str) -> Tokenizer:
    """Return the tokenizer at `path`, loaded once per process and without threads of its own.

    Raises:
        DataError: the tokenizer does not have `fingerprint`.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = read(path)
    if tokenizer.fingerprint != fingerprint:
        raise DataError(f"{path} changed while the stage ran; run it again")
    return tokenizer


def _vocab_txt(files: TokenizerFiles, lowercase: bool | None) -> tokenizers.Tokenizer:
    """Read a vocabulary with one token per line; the id is the line number, as in BERT's releases.

    Accents are stripped as the config in the directory says; else as BERT's uncased models do,
    unless a token has a mark that they strip.
    """
    path = files.vocabulary
    lines = storage.read_text(path, "a vocab.txt has one token per line").split("\n")
    # Only line feeds end lines: some vocabularies have other separators as tokens.
    vocab = {
        piece: number for number, line in enumerate(lines) if (piece := line.removesuffix("\r"))
    }
    if not vocab:
        raise DataError(f"{path} is empty; a vocab.txt has one token per line")
    config = _config(files)
    if lowercase is None and config.get("do_lower_case") is not None:
        lowercase = bool(config["do_lower_case"])
    if lowercase is None:
        lowercase = not any(
            piece != piece.lower()
            for piece in vocab
            if not (piece.startswith(("[", "<")) and piece.endswith(("]", ">")))
        )
    strip_accents = config.get("strip_accents")
    if strip_accents is None and any(
        unicodedata.category(letter) == "Mn"  # what BERT strips: Google's uncased tokens have Mc
        for piece in vocab
        for letter in unicodedata.normalize("NFD", piece)
    ):
        strip_accents = False
    return bert_backend(vocab, lowercase, strip_accents)


def _tokenizer_json(files: TokenizerFiles, lowercase: bool | None) -> tokenizers.Tokenizer:
    path = files.vocabulary
    text = storage.read_text(path, "a tokenizer.json is JSON")
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exceptions on parse errors
        raise DataError(
            f"{path} is no tokenizer.json that tokenizers {tokenizers.__version__} reads ({error});"
            f" save it again"
        ) from error
    if lowercase is not None:
        normalizer = json.loads(text).get("normalizer") or {}
        if normalizer.get("type") != "BertNormalizer":
            kind = normalizer.get("type", "none")
            raise UsageError(
                f"lowercase ({lowercase}) cannot be set for {path}, whose normalizer is {kind}; "
                f"remove it"
            )
        values = {key: value for key, value in normalizer.items() if key != "type"}
        backend.normalizer = normalizers.BertNormalizer(**{**values, "lowercase": lowercase})
    return backend


def _bpe(files: TokenizerFiles, lowercase: bool | None) -> tokenizers.Tokenizer:
    """Read a byte-level BPE; add RoBERTa's special tokens if it has none and is no GPT-2."""
    assert files.merges is not None
    vocab: dict[str, int] = storage.read_json(files.vocabulary)
    merges = []
    text = storage.read_text(files.merges, "it has two tokens per line")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#version"):
            continue
        left, space, right = line.removesuffix("\r").partition(" ")
        if not space or not left or not right or left + right not in vocab:
            raise DataError(
                f"{files.merges}, line {number} ({line[:60]!r}) is no merge of two tokens of "
                f"{files.vocabulary}; use the two files of one tokenizer"
            )
        merges.append((left, right))
    is_gpt2 = END_OF_TEXT in vocab and _model_type(files) == "gpt2"
    if not is_gpt2 and not any(name in vocab for names in SPECIAL_NAMES.values() for name in names):
        vocab = with_roberta_tokens(vocab)
    add_prefix_space = bool(_config(files).get("add_prefix_space", False))
    return roberta_backend(
        vocab, merges, lowercase=bool(lowercase), add_prefix_space=add_prefix_space
    )


def with_roberta_tokens(vocab: Mapping[str, int]) -> dict[str, int]:
    """Add RoBERTa's special tokens to GPT-2's vocabulary as fairseq does: 50,257 become 50,265.

    Four tokens come first, `madeupword0000` etc. fill the dictionary to a multiple of eight, and
    the mask comes last. GPT-2's order is kept; RoBERTa's release sorts tokens by frequency in its
    corpus.
    """
    pieces = [*ROBERTA[:4], *sorted(vocab, key=lambda piece: vocab[piece])]
    pieces += [f"madeupword{number:04d}" for number in range(-len(pieces) % FILL_TO)]
    return {piece: number for number, piece in enumerate([*pieces, ROBERTA[4]])}


def _sentencepiece(files: TokenizerFiles, lowercase: bool | None) -> tokenizers.Tokenizer:
    """Read a Unigram model of SentencePiece as ALBERT's; the config determines case and accents.

    A model that has </s> and no token for the beginning of a text is read as T5's, one beside an
    XLM-RoBERTa or CamemBERT with fairseq's ids.

    Tokens of a digit and a comma get scores too low to be chosen, because google-research/albert,
    tokenization.py, encode_pieces splits them again.
    """
    path = files.vocabulary
    with storage.open_input(path) as handle:
        model = sentencepiece_model.parse(handle.read(), path)
    if model.model_type != sentencepiece_model.UNIGRAM:
        kind = sentencepiece_model.MODEL_TYPES.get(model.model_type, str(model.model_type))
        raise DataError(
            f"{path} is a SentencePiece model of type {kind}, and only unigram models are "
            f"supported; save the tokenizer as tokenizer.json (by transformers' save_pretrained) "
            f"and give that"
        )
    if sentencepiece_model.UNKNOWN not in model.types:
        raise DataError(f"{path} has no unknown token; use a model that has one")
    config, pieces, unk_id = _config(files), [], model.types.index(sentencepiece_model.UNKNOWN)
    if _model_type(files) in backends.FAIRSEQ:
        return backends.fairseq_backend(model, _model_type(files))
    names = {piece for piece, _ in model.pieces}
    if "</s>" in names and not names.intersection(SPECIAL_NAMES["cls"]):
        if lowercase is not None:
            raise UsageError(f"lowercase ({lowercase}) cannot be set for T5's {path}; remove it")
        sentinels = 0 if METASPACE + SENTINEL in names else 100  # mT5's model has its own
        backend = t5_backend(
            model.pieces, unk_id, model.charsmap, int(config.get("extra_ids", sentinels))
        )
        sentencepiece_model.add_control_tokens(backend, model)
        return backend
    for piece, score in model.pieces:
        is_number_comma = len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()
        pieces.append((piece, score - NUMBER_COMMA if is_number_comma else score))
    if lowercase is None:
        lowercase = bool(config.get("do_lower_case", True))
    backend = albert_backend(
        pieces,
        unk_id,
        lowercase=lowercase,
        strip_accents=not config.get("keep_accents", False),
        charsmap=model.charsmap,
    )
    sentencepiece_model.add_control_tokens(backend, model)
    return backend


def _config(files: TokenizerFiles) -> dict[str, Any]:
    """Return the directory's tokenizer_config.json; empty if there is none."""
    return storage.read_json(files.config) if files.config else {}


def _model_type(files: TokenizerFiles) -> str:
    """Return the `model_type` of the Hugging Face model in the directory; empty without one."""
    name = storage.join(posixpath.dirname(files.vocabulary), MODEL_CONFIG)
    return str(storage.read_json(name).get("model_type", "")) if storage.exists(name) else ""
