"""Stage score: a pretrained checkpoint and minimal pairs in; how often it finds the good sentence likelier out. Nothing is trained.

The share of the pairs, such as BLiMP's (Warstadt et al. 2020), whose good sentence scores higher, ties counting half. Files:
`metrics.json` (accuracy over all pairs and its bootstrap interval; by phenomenon, term and field), `pairs.jsonl` (each pair's
phenomenon, id and scores).

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from model.use.cost import SCORE_COSTS
from model.use.score_config import ScoreConfig
from pipeline.core.humanize import figures
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1


def run(config: ScoreConfig, build: Build) -> Outcome:
    """Score; see `model.use.scoring.run`."""
    from model.use import scoring

    return scoring.run(config, build)


STAGE = Stage(
    name="score",
    version=VERSION,
    config=ScoreConfig,
    run=run,
    inputs={"checkpoint": Input(kinds=("pretrain",), also=("merge",), required=True)},
    worker="model",
    headline=lambda summary: figures(summary["metrics"]),
    costs=SCORE_COSTS,
    compared=("metrics",),
)
