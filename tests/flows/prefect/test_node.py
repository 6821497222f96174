"""A node as a task of Prefect's: how often it is tried again."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.flows.prefect.node import node_of
from cloze.flows.run.session import RunParameters, RunSession


@pytest.mark.parametrize(("run", "tries"), [({}, 2), ({"retries": 0}, 0), ({"retries": 5}, 5)])
def test_a_config_s_retries_count_more_than_the_form_s(
    toy_config: str, run: dict[str, Any], tries: int
) -> None:
    session = RunSession(RunParameters(config=toy_config, overrides={"run": run}))
    assert node_of(session.steps[0], usual_retries=2).retries == tries
