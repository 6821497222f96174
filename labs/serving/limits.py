"""Limits of `cloze serve`, which are its options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server and of each of its models.

    Attributes:
        max_batch: inputs per batch.
        max_wait_ms: time that the first input of a batch waits for others, in milliseconds.
        max_queue: inputs in the queue of a model; further requests are refused.
        max_items: inputs per request.
        max_characters: characters per text.
        max_body: bytes per request.
        max_connections: connections; further ones are refused.
        timeout: time from a request's arrival to its answer, in seconds; also to send the request,
            and to read the answer.
        poll: time between looks at the alias of a followed model, in seconds.
    """

    max_batch: int = 32
    max_wait_ms: float = 5
    max_queue: int = 1024
    max_items: int = 64
    max_characters: int = 100_000
    max_body: int = 1 << 20
    max_connections: int = 4096
    timeout: float = 30
    poll: float = 10
