"""Which files make up the tokenizer at a path, and in which format; nothing heavy is imported.

Formats: `tokenizer.json` (Hugging Face tokenizers), `vocab.txt` (BERT's releases), a byte-level BPE's vocabulary with
its merges beside it (GPT-2's and RoBERTa's releases), and a SentencePiece model (ALBERT's).
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.core import artifact, claim, fingerprints, storage
from pipeline.core.errors import DataError

CONFIG = "tokenizer_config.json"
# A BPE vocabulary's name and that of its merges, as they are released: transformers', OpenAI's, and with a prefix.
BPE_NAMES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
    ("-vocab.json", "-merges.txt"),
    ("_encoder.json", "_vocab.bpe"),
    ("_bpe_encoder.json", "_bpe_vocab.bpe"),
)
SENTENCEPIECE_NAMES = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")

Format = Literal["tokenizer.json", "vocab.txt", "bpe", "sentencepiece"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The files of one tokenizer.

    Attributes:
        format: how they are read.
        vocabulary: the file that holds the pieces.
        merges: of a BPE, else None.
        config: the `tokenizer_config.json` of its directory, where there is one.
    """

    format: Format
    vocabulary: str
    merges: str | None = None
    config: str | None = None

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(name for name in (self.vocabulary, self.merges, self.config) if name is not None)


def find(path: str) -> TokenizerFiles:
    """What lies at `path`: a directory, or the file that holds the pieces.

    Raises:
        DataError: there is nothing, or nothing that is a tokenizer; or merges are missing.
    """
    if not storage.exists(path):
        raise DataError(
            f"{path} does not exist; name a vocab artifact, a vocab.txt, a tokenizer.json or a Hugging Face directory"
        )
    if not storage.is_dir(path):
        return _file(path)
    if claim.is_unfinished(path):
        raise DataError(f"{path} holds an unfinished artifact; run the stage that makes it again")
    config = storage.join(path, CONFIG)
    beside = config if storage.exists(config) else None
    for name in ("tokenizer.json", "vocab.txt"):
        if storage.exists(storage.join(path, name)):
            return TokenizerFiles(format=name, vocabulary=storage.join(path, name), config=beside)
    for vocabulary, merges in BPE_NAMES[:2]:
        if storage.exists(storage.join(path, vocabulary)):
            found = _bpe(storage.join(path, vocabulary), storage.join(path, merges))
            return TokenizerFiles(format="bpe", vocabulary=found.vocabulary, merges=found.merges, config=beside)
    for name in SENTENCEPIECE_NAMES:
        if storage.exists(storage.join(path, name)):
            return TokenizerFiles(format="sentencepiece", vocabulary=storage.join(path, name), config=beside)
    raise DataError(
        f"{path} holds neither tokenizer.json nor vocab.txt, nor vocab.json with merges.txt, nor spiece.model;"
        " name a directory that has one of them, or the file itself"
    )


def fingerprint(path: str) -> str:
    """What the tokenizer at `path` follows from: an artifact's fingerprint, else the content of its files, whatever their names.

    Raises:
        DataError: as `find`.
    """
    if artifact.is_artifact(path):
        return artifact.read_manifest(path).fingerprint
    files = find(path)
    hashes = fingerprints.file_hashes(files.all)
    roles = {"vocabulary": files.vocabulary, "merges": files.merges, "config": files.config}
    return fingerprints.combine([("format", files.format), *((role, hashes[name]) for role, name in roles.items() if name)])


def _file(path: str) -> TokenizerFiles:
    if path.endswith(".model"):
        return TokenizerFiles(format="sentencepiece", vocabulary=path)
    if not path.endswith(".json"):
        return TokenizerFiles(format="vocab.txt", vocabulary=path)
    if path.endswith("tokenizer.json") or not _is_plain_vocabulary(path):
        return TokenizerFiles(format="tokenizer.json", vocabulary=path)
    directory, name = posixpath.split(path)
    tried = []
    for vocabulary, merges in BPE_NAMES:
        exact = not vocabulary.startswith(("-", "_"))
        if name == vocabulary if exact else name.endswith(vocabulary):
            tried.append(posixpath.join(directory, name[: len(name) - len(vocabulary)] + merges))
    for merges in tried:
        if storage.exists(merges):
            return _bpe(path, merges)
    wanted = posixpath.basename(tried[0]) if tried else "merges.txt (and name the vocabulary vocab.json)"
    raise DataError(f"{path} holds pieces and no merges; put the tokenizer's {wanted} beside it")


def _bpe(vocabulary: str, merges: str) -> TokenizerFiles:
    if not storage.exists(merges):
        raise DataError(f"{merges} does not exist; {vocabulary} needs it beside it: the merges of its pieces")
    return TokenizerFiles(format="bpe", vocabulary=vocabulary, merges=merges)


def _is_plain_vocabulary(path: str) -> bool:
    """Whether a JSON file maps pieces to ids, as the vocabulary of a BPE does (and a `tokenizer.json` does not)."""
    try:
        content: Any = json.loads(storage.read_text(path))
    except ValueError:  # its reader says what is wrong
        return False
    return isinstance(content, dict) and bool(content) and all(isinstance(value, int) for value in content.values())
