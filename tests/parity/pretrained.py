"""Tokenizers of every kind, which know the words of `tests.tiny_models` whole, and tiny checkpoints
with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from cloze.model import checkpoint
from cloze.pipeline.tokenizer.backends import albert_backend, bert_backend
from cloze.pipeline.tokenizer.special import ALBERT, BERT, METASPACE
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from cloze.pipeline.vocab.config import VocabConfig
from cloze.pipeline.vocab.trainers import train_bpe
from tests.tiny_models import WORDS, tiny_config, tiny_model

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PLAIN = [word for word in WORDS if word.isalpha()]


def wordpiece() -> tokenizers.Tokenizer:
    pieces = [*BERT, *PLAIN, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    names = dict.fromkeys(pieces)
    return bert_backend({piece: number for number, piece in enumerate(names)}, lowercase=True)


def byte_level() -> tokenizers.Tokenizer:
    texts = [text for word in PLAIN for text in (f"{word} {word}", word)] * 9
    made: tokenizers.Tokenizer = train_bpe(
        lambda: iter(texts), VocabConfig(kind="bpe"), size=420, lowercase=False, strip_accents=False
    )
    return made


def unigram() -> tokenizers.Tokenizer:
    words = [(f"{METASPACE}{word}", -1.0) for word in PLAIN]
    letters = [(piece, -9.0) for piece in [METASPACE, *LETTERS]]
    return albert_backend([*((piece, 0.0) for piece in ALBERT), *words, *letters], unk_id=1)


def xlm_roberta() -> tokenizers.Tokenizer:
    """The frame of RoBERTa, written as a template over another vocabulary."""
    backend = wordpiece()
    ids = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] [SEP] $B [SEP]", special_tokens=ids
    )
    return backend


def unframed() -> tokenizers.Tokenizer:
    """A tokenizer whose files frame nothing: Cloze adds BERT's frame and saves it."""
    backend = wordpiece()
    backend.post_processor = processors.ByteLevel()
    return backend


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    made.__name__: made for made in (wordpiece, byte_level, unigram, xlm_roberta, unframed)
}


def new_tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.of(KINDS[kind](), kind)


def write_pretrained(
    directory: Path, family: str, kind: str, heads: Mapping[str, Any] | None = None, **changes: Any
) -> str:
    """A complete pretraining checkpoint of random weights with a tokenizer of this kind."""
    pieces = new_tokenizer(kind)
    sizes = {"vocab_size": pieces.vocab_size, "pad_token_id": pieces.special.pad}
    changes = {"family": family, **sizes, **changes}
    config = tiny_config(**changes)
    state = tiny_model(**changes).state_dict()
    checkpoint.save_weights(
        str(directory), model=config, state=state, tokenizer=pieces, heads=heads or config.heads
    )
    checkpoint.finalize(str(directory))
    return str(directory)
