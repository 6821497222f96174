"""What a stage takes and gives changes on purpose or not at all."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import Field

from cloze.core.config import StageConfig
from cloze.core.stages.stage import InputSpec, Stage, StageResult
from tests import contracts


def test_no_input_output_option_or_place_in_help_changes_unnoticed() -> None:
    recorded = contracts.FILE.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(recorded, list(contracts.lines()), lineterm="", n=1))
    assert not changes, "\n".join([*changes, "if it is meant: python -m tests.contracts"])


class ToyConfig(StageConfig):
    size: int = Field(ge=2, le=9)
    kind: Literal["a", "b"] = "a"
    shares: tuple[Annotated[float, Field(gt=0)], ...] = ()


def test_a_contract_tells_bounds_words_defaults_and_inputs() -> None:
    toy = Stage(
        name="toy",
        version=1,
        config=ToyConfig,
        run=lambda config, build: StageResult(),
        inputs={"corpus": InputSpec(kinds=("corpus",), required=True), "other": InputSpec()},
        unread=frozenset({"zero", "engine"}),
        outputs=("x",),
    )
    assert [line.strip() for line in contracts.contract(toy)] == [
        'reads corpus: {"kinds": ["corpus"], "required": true}',
        "reads other: {}",
        'unread: ["engine", "zero"]',
        'outputs: ["x"]',
        'size (required): {"maximum": 9, "minimum": 2, "type": "integer"}',
        'kind: {"default": "a", "enum": ["a", "b"], "type": "string"}',
        'shares: {"default": [], "items": {"exclusiveMinimum": 0, "type": "number"}, '
        '"type": "array"}',
    ]
