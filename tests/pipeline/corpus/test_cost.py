"""What the corpus stage says beforehand of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.config import parse_config
from cloze.core.stages.cost import MachineSpec, PlannedBuild
from cloze.core.stages.execution import Execution
from cloze.pipeline.corpus.config import CorpusConfig, ahead


@pytest.mark.parametrize(
    ("execution", "note"),
    [
        ({}, ""),
        (
            {"dedup_in_memory_documents": 99},
            "compared in partitions (dedup_in_memory_documents is 99)",
        ),
        (
            {"runner": "flink", "dedup_in_memory_documents": 99},
            "compared in partitions (dedup_in_memory_documents is 99)",
        ),
        ({"runner": "flink"}, "compared by one process (dedup_in_memory_documents is 50,000,000)"),
    ],
)
def test_where_duplicates_are_searched(
    execution: dict[str, object], note: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a" * 400_000)
    config = parse_config(
        CorpusConfig, {"sources": [{"kind": "text", "path": str(tmp_path)}]}, "corpus"
    )
    cost = ahead(PlannedBuild(config, {}, Execution(**execution), MachineSpec()))
    assert cost.note == (f"about 120 documents are {note}" if note else "")
    most = ahead(PlannedBuild(config, {}, Execution(), MachineSpec())).memory_bytes
    assert cost.memory_bytes < most if "partitions" in note else cost.memory_bytes == most
