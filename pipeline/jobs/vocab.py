"""Stage "vocab": a corpus in, a tokenizer out.

It is trained on a sample of the training split, chosen by the documents' keys, so that the same corpus gives the same
bytes on every machine. Transformers' `AutoTokenizer` opens the artifact's directory.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from pipeline.errors import DataError, did_you_mean
from pipeline.stage import Build, Outcome, Stage, StageConfig
from pipeline.tokenizer import TRAINERS

VERSION = 1


class VocabConfig(StageConfig):
    """What the tokenizer is like.

    Attributes:
        kind: a name in `pipeline.tokenizer.TRAINERS`.
        size: pieces, special tokens included. Text too small to yield as many gives fewer.
        lowercase: lowercase the text and strip accents, as BERT's uncased models do.
        min_frequency: how often a pair of pieces must occur to be merged.
        limit_alphabet: the most different characters kept, by frequency; words with others become [UNK].
        sample_bytes: UTF-8 bytes of text to train on; whole documents, in an order drawn from their keys.
    """

    kind: str = "wordpiece"
    size: int = Field(default=30522, ge=6, le=1 << 24)
    lowercase: bool = True
    min_frequency: int = Field(default=2, ge=1)
    limit_alphabet: int = Field(default=1000, ge=1)
    sample_bytes: int = Field(default=100_000_000, ge=1)

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in TRAINERS:
            raise ValueError(f"unknown kind of tokenizer; {did_you_mean(kind, TRAINERS)}")
        return kind


def run(config: VocabConfig, build: Build) -> Outcome:
    """Train, save, and measure on held-out text.

    The summary's `fertility` is pieces a word (punctuation marks are words), `unknown_rate` the share of [UNK].

    Raises:
        DataError: the corpus is missing, damaged or empty.
        UsageError: `size` leaves no room for the characters of the text.
    """
    from pipeline.job import load
    from pipeline.tokenizer.sample import draw_samples
    from pipeline.tokenizer.tokenizer import Tokenizer
    from pipeline.transforms.corpus_shards import CorpusShards

    corpus = CorpusShards.open(build.inputs["corpus"])
    sample, heldout = draw_samples(corpus, config.sample_bytes, build.report)
    settings = config.model_dump(include={"size", "lowercase", "min_frequency", "limit_alphabet"})
    tokenizer = Tokenizer.of(load(TRAINERS[config.kind])(sample.texts, **settings), build.path)
    tokenizer.save(build.path)
    ids, _ = tokenizer.encode_flat(list(heldout.texts()))
    if not len(ids):
        raise DataError(f"{corpus.path} holds no text that has pieces; give `cloze corpus` other text")
    build.counters["sample/documents"] += sample.documents
    build.counters["sample/bytes"] += sample.size
    summary = {
        "size": tokenizer.vocab_size,
        "kind": config.kind,
        "fertility": round(len(ids) / max(1, int(tokenizer.word_start[ids].sum())), 4),
        "unknown_rate": round(float((ids == tokenizer.special.unk).mean()), 6),
        "sample_bytes": sample.size,
    }
    return Outcome(rows=tokenizer.vocab_size, tokens=len(ids), summary=summary)


STAGE = Stage(name="vocab", version=VERSION, config=VocabConfig, run=run, inputs=("corpus",))
