"""Stage explain: shows what each step of the corpus stage does to one document. Writes no files.

It takes the config of the corpus stage and thus reports what that stage does.
"""

from __future__ import annotations

from dataclasses import asdict

from pydantic import Field

from cloze.core.stages.stage import BuildContext, Stage, StageResult
from cloze.pipeline.corpus.config import CorpusConfig


class ExplainConfig(CorpusConfig):
    """Config of the corpus and the title of one document in it."""

    title: str = Field(min_length=1)
    """Title or id of the document."""


def run(config: ExplainConfig, build: BuildContext) -> StageResult:
    """Explain the document; `summary["explain"]` is an `Explanation` as a dict."""
    from cloze.pipeline.corpus.explain import explain

    return StageResult(summary={"explain": asdict(explain(config, config.title, build.report))})


STAGE = Stage(name="explain", version=2, config=ExplainConfig, run=run, worker="cloze.pipeline")
