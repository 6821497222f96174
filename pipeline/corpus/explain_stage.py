"""Stage explain: the sources of a corpus and a document's title in; what each step does to that document out. It writes no files.

It takes the config of the corpus stage, so that what it tells is what that stage will do. The command line imports this
module; what reads and cleans comes in when the stage runs.
"""

from __future__ import annotations

from dataclasses import asdict

from pydantic import Field

from pipeline.core.stage import Build, Outcome, Stage
from pipeline.corpus.config import CorpusConfig

VERSION = 1


class ExplainConfig(CorpusConfig):
    """The corpus, and the document in it."""

    title: str = Field(min_length=1)
    """The title of the document, or its id."""


def run(config: ExplainConfig, build: Build) -> Outcome:
    """Explain; the summary's `explain` holds a `pipeline.corpus.explain.Explanation`."""
    from pipeline.corpus.explain import explain

    return Outcome(summary={"explain": asdict(explain(config, config.title, build.report))})


STAGE = Stage(name="explain", version=VERSION, config=ExplainConfig, run=run, worker="pipeline")
