"""The verb generate: its options, its row, and its stage. No torch: the command line imports it."""

from __future__ import annotations

from pydantic import Field

from cloze.core.config import InputPath
from cloze.model.use.configs import VerbConfig
from cloze.model.use.verb import Predictor, TableColumns, verb_stage


class GenerateConfig(VerbConfig):
    """Options of generate. A request has `text`, the beginning of a text."""

    tokens: int = Field(default=40, ge=1)
    """Maximum number of new tokens; fewer if the text ends, or the model can read no more."""

    samples: int = Field(default=1, ge=1)
    """Number of continuations per text; more than one are sampled."""

    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; 0 takes the most likely token. Default: 0, or 1 with other sampling
    options."""

    top_k: int | None = Field(default=None, ge=1)
    """Sample from this number of most likely tokens."""

    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample from the fewest tokens whose probabilities sum to this value."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the sampling."""

    beams: int | None = Field(default=None, ge=1)
    """Encoder-decoders: partial outputs that the search follows. Default: the task's, else 1."""

    length_penalty: float | None = None
    """Encoder-decoders: exponent of the length that divides a beam's score. Default: the task's,
    else 1."""

    corpus: InputPath | None = None
    """Checkpoints of --retrieve: vectors of passages to read instead of those of the training."""


VERB = Predictor(
    GenerateConfig,
    "cloze.labs.seq2seq.generate:Generate",
    heads=("lm", "seq2seq"),
    examples=({"text": "The cat"},),
    columns=lambda config: TableColumns(
        "text:string continuation:string tokens:long stopped:string", params={"tokens": 40}
    ),
    pipeline="cloze.labs.seq2seq.generate:generation_pipeline",
    served="cloze.labs.seq2seq.generate:continue_texts",
)
STAGE = verb_stage("generate", VERB)
