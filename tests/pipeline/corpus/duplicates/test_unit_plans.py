"""Every text that cleaning dropped is in the plan of a unit, whatever is left of the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.arrow import write_arrow
from cloze.pipeline.corpus.duplicates.plan import plan
from cloze.pipeline.corpus.duplicates.unit_plans import UnitPlan
from cloze.pipeline.corpus.files.intermediate import signatures_schema
from tests.pipeline.corpus.duplicates.plans import wanted
from tests.pipeline.corpus.duplicates.references import MINHASH, References, invented
from tests.pipeline.runners.units import build


@pytest.mark.parametrize("documents", [0, 300])
def test_each_files_dropped_texts_are_one_units(tmp_path: Path, documents: int) -> None:
    if documents:
        references = invented(tmp_path, documents, 1)
    else:
        paths = [str(tmp_path / f"{number}.refs.arrow") for number in range(3)]
        for path in paths:
            write_arrow(path, signatures_schema(MINHASH, True), [])
        references = References(paths, [0] * 3, ["text"] * 3)
    request = wanted(tmp_path / "plans", references)
    begun = build(tmp_path / "out")
    with begun.cleanup:
        found = plan(begun, request, documents)
    plans = [
        UnitPlan.read(request.directory, unit, keep_dropped=True) for unit in range(found.units)
    ]
    assert [path for each in plans for path in each.dropped] == list(request.parts)
    assert sum(each.kept.num_rows for each in plans) == found.documents
    assert bool(documents) == any(each.pieces for each in plans)
