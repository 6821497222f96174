"""SST-2: is a phrase of a film review positive (1) or negative (0)?

The format is that of GLUE's archive (Wang et al. 2019): train.tsv and dev.tsv with the columns `sentence` and
`label`, test.tsv with `index` and `sentence`. Any two-class set in this format can be fine-tuned on.
"""

from __future__ import annotations

from model.tasks.table import Examples
from model.tasks.tsv import read_header, read_table
from pipeline.core import storage
from pipeline.core.errors import DataError


class Task:
    """Sentence classification in SST-2's files; its score is accuracy (Wang et al. 2019, table 1)."""

    name = "sst2"
    metrics: tuple[str, ...] = ("accuracy",)
    source = "data"
    files = "a directory with train.tsv and dev.tsv (columns: sentence, label)"
    labels = ("0", "1")

    def read(self, path: str, split: str, limit_per_class: int | None) -> Examples:
        """Read `path`/`split`.tsv; the limit holds for the training examples only. See `Task.read` of the table."""
        name = storage.join(path, f"{split}.tsv")
        if not storage.exists(name):
            raise DataError(f"{name} does not exist; task {self.name} reads {self.files}")
        labelled = split != "test" or "label" in read_header(name)
        texts: list[str] = []
        labels: list[int] = []
        for number, values in read_table(name, ("sentence", "label") if labelled else ("sentence",)):
            if not values[0].strip():
                raise DataError(f"{name}, line {number}: the sentence is empty; remove the line")
            if labelled and values[1] not in self.labels:
                raise DataError(
                    f"{name}, line {number}: label {values[1]!r} is not one of {', '.join(self.labels)}; mend the line"
                )
            texts.append(values[0])
            labels += [self.labels.index(values[1])] if labelled else []
        examples = Examples(texts=texts, labels=labels if labelled else None, label_names=self.labels, where=name)
        return examples.capped(limit_per_class) if split == "train" else examples
