"""Tasks that rank passages for a query, and their options. No torch: part of configs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cloze.model.tasks.options import TEMPERATURE, TableOptions, TaskOptions, TaskSpec
from cloze.model.tasks.table import TaskKind


class BiEncoderOptions(TaskOptions):
    """Options of retrieval: pairs of queries and passages, and their comparison."""

    pairs: Literal["rows", "squad", "titles", "sentences"] = "rows"
    """Source of the pairs: rows of a file, questions and passages of SQuAD, or a corpus's titles
    and articles, or sentences and the passages around them (inverse cloze task)."""

    columns: dict[str, str] = Field(default_factory=dict)
    """With pairs rows: column of each role (query, passage), where the name differs."""

    limit: int | None = Field(default=None, ge=2)
    """Maximum number of training pairs, chosen by hash. Default: all."""

    pooling: Literal["mean", "first"] = "mean"
    """Vector of a text: mean of its last hidden states, special tokens included, or the first
    one."""

    normalize: bool = True
    """Scale all vectors to length 1, so that their product is the cosine similarity."""

    temperature: float = Field(default=TEMPERATURE, gt=0)
    """Temperature of the similarities (SimCSE)."""

    group: int = Field(default=32, ge=2)
    """Approximate number of pairs that are contrasted with each other (in-batch negatives)."""

    hard_negatives: int = Field(default=0, ge=0)
    """Passages per pair that BM25 ranks highest among the wrong ones, which join its group
    (Karpukhin et al. 2020)."""

    symmetric: bool = False
    """Also contrast each passage with the queries of its group; the loss is the mean of both
    directions."""

    def as_table(self) -> TableOptions | None:
        if self.pairs != "rows":
            return None
        from cloze.model.tasks.formats.tables import LABEL, TEXT

        own = (self.columns.get(role, role) for role in ("query", "passage"))
        columns: dict[str, str | int] = dict(zip((TEXT, LABEL), own, strict=True))
        return TableOptions(folder=self.folder, files=self.files, columns=columns)


KIND = TaskKind(
    "cloze.labs.retrieval.bi_encoder_task:RetrievalTask", BiEncoderOptions, max_length=256
)
RETRIEVAL = TaskSpec(kind="retrieval")  # files of the user
TITLES = TaskSpec(kind="retrieval", options={"pairs": "titles"})
INVERSE_CLOZE = TaskSpec(kind="retrieval", options={"pairs": "sentences"})
# the passage of a question, among all of SQuAD's (Rajpurkar et al. 2016)
SQUAD = TaskSpec(
    kind="retrieval",
    options={"pairs": "squad", "files": {"train": "train-v1.1.json", "dev": "dev-v1.1.json"}},
)
