"""The labs' stages take and give what `tests/contracts.txt` says of them."""

from __future__ import annotations

import pytest

from cloze.flows.graph import stages
from tests import contracts

LABS = ("index", "vectors", "semdedup", "entities", "static-vectors", "prune", "heads", "probe", "layers", "submission",
        "answer", "generate", "search", "answer-corpus", "filter", "neighbours", "attention")  # fmt: skip


def recorded() -> dict[str, list[str]]:
    """The recorded lines by the heading above them."""
    blocks: dict[str, list[str]] = {}
    for line in contracts.FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            blocks[heading].append(line)
        else:
            heading = line
            blocks[heading] = []
    return blocks


@pytest.mark.parametrize("name", LABS)
def test_a_stage_is_as_recorded(name: str) -> None:
    assert list(contracts.contract(stages.stage(name))) == recorded()[f"stage {name}"]
