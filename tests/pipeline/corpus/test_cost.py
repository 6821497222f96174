"""What the corpus stage says beforehand of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.config import parse_config
from pipeline.core.cost import Computer
from pipeline.core.execution import Execution
from pipeline.corpus.config import CorpusConfig
from pipeline.corpus.cost import ahead


@pytest.mark.parametrize(
    ("execution", "note"),
    [
        ({}, ""),
        ({"driver_references": 99}, "compared by one process (runner local always does so)"),
        ({"runner": "flink", "driver_references": 99}, "compared by the shuffle of runner flink (driver_references is 99)"),
        ({"runner": "flink"}, "compared by one process (driver_references is 50,000,000)"),
    ],
)
def test_where_duplicates_are_searched(execution: dict[str, object], note: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 400_000)
    config = parse_config(CorpusConfig, {"sources": [{"kind": "text", "path": str(tmp_path)}]}, "corpus")
    cost = ahead(config, {}, Execution(**execution), Computer(), None)
    assert cost.note == (f"about 120 documents are {note}" if note else "")
    most = ahead(config, {}, Execution(), Computer(), None).memory_bytes
    assert cost.memory_bytes < most if "shuffle" in note else cost.memory_bytes == most
