"""An objective makes what it likes of rows: the loader, the evaluator and `perplexity` ask it, and
name no objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from cloze.core.errors import UsageError
from cloze.core.ragged import I64
from cloze.core.stages.execute import execute
from cloze.model.data.rows import MaskedRows
from cloze.model.layers.batch import Batch
from cloze.model.objectives import OBJECTIVES, Objective, losses, transform_of
from cloze.model.use.configs import PerplexityConfig
from cloze.model.use.stages import PERPLEXITY
from tests.model.datasets import write_dataset
from tests.model.train.ranks import STILL, config, here


@dataclass
class Marked:
    """Rows as they are, in a batch with the numbers of its samples."""

    seed: int
    seen: list[int]

    def collate(
        self, rows: MaskedRows, samples: I64, plain: Callable[[MaskedRows], Batch]
    ) -> Batch:
        self.seen.extend(samples.tolist())
        batch: Any = plain(rows)
        return self.empty(batch)

    def empty(self, batch: Batch) -> Batch:
        marked: Any = {**batch, "marked": batch["input_ids"]}
        return marked


MADE: list[Marked] = []


def marked_targets(batch: Batch) -> Tensor:
    values: Any = batch
    assert values["marked"].equal(batch["input_ids"]), "each batch is the transform's"
    return losses.MLM.targets(batch)


def marked(model: Any, info: Any, tokenizer: str, seed: int) -> Marked:
    assert Path(tokenizer).is_dir()
    assert info.length <= model.max_position_embeddings
    MADE.append(Marked(seed, []))
    return MADE[-1]


MARKED = Objective(
    name="marked",
    targets=marked_targets,
    loss=losses.MLM.loss,
    head="masked_lm",
    reads="masked",
    transform=marked,
)


def test_a_new_objective_changes_rows_in_training_and_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OBJECTIVES, "marked", f"{__name__}:MARKED")  # type: ignore[arg-type]
    MADE.clear()
    dataset = write_dataset(tmp_path / "dataset", rows=24, heldout=8, pair_task=None)
    settings = config(model=STILL, objectives=["marked"], steps=2, global_batch=4, seed=9)
    here(settings, dataset, tmp_path / "run")
    (made,) = MADE
    assert made.seed == 9
    assert set(range(8)) <= set(made.seen)  # two steps of four samples, held-out rows from 0
    with pytest.raises(UsageError, match=r"objective \(marked\) is used alone"):
        here(config(model=STILL, objectives=["marked", "clm"], steps=2), dataset, tmp_path / "both")
    inputs = {"checkpoint": str(tmp_path / "run"), "dataset": dataset}
    execute(PERPLEXITY, PerplexityConfig(precision="fp32"), inputs, str(tmp_path / "out"))
    assert len(MADE) in (1, 2)


@pytest.mark.parametrize("names", [("mlm",), ("clm", "mntp"), ("mlm", "nsp")])
def test_others_read_rows_as_they_are_stored(names: tuple[str, ...]) -> None:
    nothing: Any = None
    assert transform_of(names, nothing, nothing, "", 1) is None
