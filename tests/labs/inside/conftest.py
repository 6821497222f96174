"""Fixtures that the tests of tasks have."""

from tests.model.tasks.conftest import pieces as pieces
