"""Stage vectors: a corpus and a checkpoint in; a vector of every document out, which stage semdedup compares.

A document is read in windows of about as many pieces as the model reads, and its vector is the mean of theirs, of length 1, in whole numbers
(pipeline/core/unit_vectors.py). A file a corpus shard: the documents' keys, ascending, and their vectors.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from model.use.vectors_config import VectorsConfig
from model.use.vectors_cost import COSTS
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1


def run(config: VectorsConfig, build: Build) -> Outcome:
    """Embed the documents; see `model.use.corpus_vectors.run`."""
    from model.use import corpus_vectors

    return corpus_vectors.run(config, build)


STAGE = Stage(
    name="vectors",
    version=VERSION,
    config=VectorsConfig,
    run=run,
    inputs={
        "corpus": Input(kinds=("corpus",), required=True),
        "checkpoint": Input(kinds=("pretrain",), also=("finetune", "merge"), required=True),
    },
    worker="model",
    parallel=True,
    headline=lambda summary: f"{summary['documents']:,} vectors of {summary['size']} numbers",
    costs=COSTS,
)
