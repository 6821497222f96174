"""Config and stage of the command neighbours. No torch: the command line imports it."""

from __future__ import annotations

from pydantic import Field

from cloze.core.config import InputPath
from cloze.model.use.configs import VerbConfig
from cloze.model.use.verb import Predictor, verb_stage


class NeighboursConfig(VerbConfig):
    """Options of neighbours. A request has `word` and `in`, a sentence with it."""

    corpus: InputPath | None = None
    """Corpus whose sentences are searched. Not needed for static vectors."""

    static: InputPath | None = None
    """Static vectors (`cloze static-vectors`), whose nearest words are shown next to the
    occurrences."""

    layer: int = -1
    """Layer of the states, from 0 (the embeddings); negative: from the end. Middle layers often
    separate meanings best."""

    any_word: bool = False
    """Compare all words of the sentences, not only occurrences of the word itself."""

    sentences: int = Field(default=2000, ge=1)
    """Maximum number of sentences that are read; the corpus is in random order."""

    top_k: int = Field(default=5, ge=1)
    """Number of neighbours, nearest first."""


PREDICTOR = Predictor(NeighboursConfig, "cloze.labs.inside.neighbours:Neighbours", "word")
STAGE = verb_stage("neighbours", PREDICTOR)
