"""The table of stages: every stage says all about itself, and no default changes unnoticed."""

from __future__ import annotations

import copy
import json
from pkgutil import resolve_name
from typing import Any

import pytest
from pydantic import BaseModel

from cloze.core.config import NoFingerprint
from cloze.core.errors import UsageError
from cloze.flows.graph import stages
from tests import stage_defaults


@pytest.mark.parametrize("name", [*stages.TABLE, *stages.TOOLS])
def test_a_stage_is_known_by_its_own_name_and_run_by_its_own_package(name: str) -> None:
    table = stages.TABLE if name in stages.TABLE else stages.TOOLS
    stage, package = table[name], ".".join(table.reference(name).split(".")[:2])
    assert stage.name == name
    workers = ("cloze.pipeline", "cloze.model") if package == "cloze.labs" else (package,)
    assert stage.worker in (None, *workers)
    resolve_name(f"{stage.worker}.worker") if stage.worker else None


def test_an_unknown_stage_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"stage \('corpsu'\) is unknown; did you mean 'corpus'"):
        stages.stage("corpsu")


def test_no_default_changes_while_the_version_stays() -> None:
    """What fails here changes results under an old fingerprint. See tests/stage_defaults.py."""
    recorded = json.loads(stage_defaults.FILE.read_text())
    assert set(stages.TABLE) <= set(recorded), "a new stage: run python -m tests.stage_defaults"
    assert stage_defaults.faults(recorded, stage_defaults.current()) == []


class Nested(BaseModel):
    rate: float = 0.5


class Config(BaseModel):
    size: int
    seed: int = 1
    nested: Nested | None = None
    log_every: NoFingerprint[int] = 10


def test_changed_and_vanished_defaults_are_noticed_and_new_fields_are_not() -> None:
    values = stage_defaults.defaults(Config)
    assert values == {"size": "(required)", "seed": 1, "nested": None, "nested.rate": 0.5}
    recorded = {"toy": {"version": 1, "defaults": values}}

    def change(version: int = 1, **fields: Any) -> list[str]:
        now = copy.deepcopy(recorded)
        now["toy"]["version"] = version
        now["toy"]["defaults"] = {
            key: value for key, value in {**values, **fields}.items() if value != "gone"
        }
        return stage_defaults.faults(recorded, now)

    assert change() == change(new=3) == []
    assert change(seed=2) == ["toy: default of seed was 1, is 2; raise the stage's version"]
    assert change(seed="gone") == ["toy: field seed is gone; raise the stage's version"]
    assert change(version=2, seed=2) == [
        "toy: version 1 became 2; run python -m tests.stage_defaults"
    ]
