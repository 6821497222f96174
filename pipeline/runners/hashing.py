"""Hashes of source files by the workers: many local bytes, or a store without content tags."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any
from uuid import uuid4

from cloze.core import storage
from cloze.core.artifacts.fingerprints import Stamp, combine_hashes, hash_by_threads
from cloze.core.artifacts.lock import locked
from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.runners.base import LOCAL
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.runners.sizes import group_by_size

UNIT_BYTES = 1 << 30
HASHES = f"{storage.TEMPORARY}hashes"  # no part of an artifact, and not foreign to one


def hash_by_workers(
    execution: Execution, directory: str, paths: Sequence[str], stamps: Sequence[Stamp | None]
) -> list[str]:
    """Return the sha256 of each file, read by the workers of a run.

    A file is one worker's work: sha256 cannot be computed in parts. What an interrupted attempt
    hashed is not read again. One process with threads reads what one unit would.

    Args:
        directory: directory that all workers read and write.
        stamps: size and time of each file; None: unknown.
    """
    sizes = [1 if stamp is None else stamp[0] for stamp in stamps]
    alone = execution.runner.lower() == LOCAL and execution.workers == 1
    if alone or sum(sizes) < UNIT_BYTES:
        return list(hash_by_threads(paths, stamps))
    place = storage.absolute(storage.join(directory, HASHES))
    groups = group_by_size(sizes, UNIT_BYTES)
    units = []
    for first, end in groups:
        facts = [str(stamp or uuid4()) for stamp in stamps[first:end]]
        name = combine_hashes(zip(paths[first:end], facts, strict=True))
        units.append((name[:32], list(paths[first:end])))
    weights = [float(sum(sizes[first:end])) for first, end in groups]
    with ExitStack() as held:
        try:
            held.enter_context(locked(place))
        except UsageError:  # another plan of the run hashes there, and removes it
            place = f"{place}-{uuid4().hex}"
            held.callback(storage.remove, place)
        build = BuildContext(path=place, inputs={}, execution=execution, fingerprint="")
        with build.cleanup:
            results = fan_out(build, "hash", units, hash_unit, unit_name="bytes", weights=weights)
        with suppress(OSError):  # where yet another plan begins at this moment
            storage.remove(place)
    return [sha256 for result in results for sha256 in result["sha256"]]


def hash_unit(paths: list[str]) -> dict[str, Any]:
    """Return the sha256 of each file."""
    return {"sha256": [storage.sha256(path)[0] for path in paths]}
