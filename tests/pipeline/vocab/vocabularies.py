"""Vocabularies made by the stage itself."""

from __future__ import annotations

from pathlib import Path

from cloze.core.config import parse_config
from cloze.core.stages.execute import BuildResult, execute
from cloze.pipeline.vocab.config import VocabConfig
from cloze.pipeline.vocab.stage import STAGE
from tests.pipeline.corpus.corpora import made_documents, write_corpus

CONFIG = {"size": 300, "sample_bytes": 40_000}


def make(corpus: str, out: Path, **settings: object) -> BuildResult:
    """Run the stage on a corpus."""
    return make_with({"corpus": corpus}, out, **settings)


def make_with(inputs: dict[str, str], out: Path, **settings: object) -> BuildResult:
    """Run the stage on what is given."""
    return execute(STAGE, parse_config(VocabConfig, settings, "vocab"), inputs, str(out))


def write_sample_corpus(directory: Path) -> str:
    """The made documents in three shards, two of them held out."""
    documents = made_documents()
    return write_corpus(directory, documents, shards=3, heldout=[documents[5][0], documents[9][0]])
