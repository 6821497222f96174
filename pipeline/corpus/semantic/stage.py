"""Stage "semdedup": a corpus and the vectors of its documents in, the corpus without documents that say the same in other words out.

SemDeDup (Abbas et al. 2023, arXiv 2303.09540): the vectors are clustered by k-means, and within a cluster a document goes whose cosine to
one that stays is at least a threshold. As with other duplicates the longest stays, of equally long ones that of the smallest key (the paper keeps the
one farthest from its cluster's centre), and nothing goes for being like something that went. What went, and for which document, stands in
`semantic_duplicates.arrow`, a record batch a shard; figures and examples in `semantic.json`. All is computed in whole numbers, so the bytes are
the same for any number of workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.core.humanize import si
from pipeline.core.stage import Build, Input, Outcome, Stage
from pipeline.corpus.semantic.config import SemDedupConfig
from pipeline.corpus.semantic.cost import COSTS

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1


def run(config: SemDedupConfig, build: Build) -> Outcome:
    """Cluster, compare, and write what stays.

    Raises:
        DataError: the vectors are not those of the corpus.
    """
    from pipeline.corpus.semantic.driver import deduplicate

    return deduplicate(config, build)


def headline(summary: Mapping[str, Any]) -> str:
    """Documents and bytes that stay, and how many went."""
    return f"{summary['documents']:,} documents, {si(summary['bytes'])}B, {sum(summary['dropped'].values()):,} dropped"


STAGE = Stage(
    name="semdedup",
    version=VERSION,
    config=SemDedupConfig,
    run=run,
    inputs={"corpus": Input(kinds=("corpus",), required=True), "vectors": Input(kinds=("vectors",), required=True)},
    worker="pipeline",
    headline=headline,
    costs=COSTS,
    compared=("documents", "bytes", "words"),
)
