"""Limits of `cloze serve`, which are its options."""

from __future__ import annotations

from pydantic import Field

from cloze.core.config import Values


class Limits(Values):
    """Limits of a server and of each of its models."""

    max_batch: int = Field(default=32, ge=1, le=4096)
    """Maximum inputs per batch."""

    max_wait_ms: float = Field(default=5, ge=0, le=10_000)
    """Time that an input waits for others of its batch, in milliseconds."""

    max_queue: int = Field(default=1024, ge=1)
    """Inputs that may wait per model; further requests get 429."""

    max_items: int = Field(default=64, ge=1)
    """Maximum inputs per request."""

    max_characters: int = Field(default=100_000, ge=1)
    """Maximum characters per text."""

    max_body: int = Field(default=1 << 20, ge=1)
    """Maximum bytes per request."""

    max_connections: int = Field(default=4096, ge=1)
    """Maximum connections; further ones get 503."""

    timeout: float = Field(default=30, ge=0.1, le=3600)
    """Maximum time of a request, in seconds; also to send it, and to read the answer."""

    poll: float = Field(default=10, ge=0.01, le=3600)
    """Time between looks at the alias of a registered model, in seconds."""
