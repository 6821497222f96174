"""The inference command attention: its config and stage, without torch."""

from __future__ import annotations

from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.model.analyze.attention_config import AttentionConfig
from cloze.model.use.verb import VERSION, serve


def _run(config: AttentionConfig, build: BuildContext) -> StageResult:
    from cloze.model.analyze.attention import ShowAttention  # torch

    return serve(ShowAttention(build.inputs["checkpoint"], config), config, "text", build)


STAGE = Stage(
    name="attention",
    version=VERSION,
    config=AttentionConfig,
    run=_run,
    inputs={"checkpoint": InputSpec(required=True)},
    worker="cloze.model",
)
