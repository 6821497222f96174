"""Config that all verbs have in common. No torch: the command line imports it at every start."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from pipeline.core.config import StageConfig


class VerbConfig(StageConfig):
    """What is asked, of any verb; a verb's own class adds its options."""

    requests: tuple[dict[str, Any], ...] = ()
    """The requests of the command line: their fields by name."""

    file: str | None = None
    """A file with a request a line, or a pipe."""

    called: str | None = None
    """What messages call the file, where its path says nothing to a user."""

    jsonl: bool = False
    """Whether the file's lines are JSON objects, with the fields as keys."""

    common: dict[str, Any] = Field(default_factory=dict)
    """Fields that every request has, unless it says otherwise."""

    @model_validator(mode="after")
    def _something(self) -> VerbConfig:
        if not self.requests and self.file is None:
            raise ValueError("requests (found none) and file (found none) leave nothing to answer; give one of them")
        return self
