"""The flows over a graph of toy stages: what the test's deployments name."""

from __future__ import annotations

from flows.graph import stages
from tests.operations.training import TABLE

stages.TABLE.clear()
stages.TABLE.update(TABLE)

from flows.prefect.full_run import full_run as toys  # noqa: E402 the form is made from the table

__all__ = ["toys"]
