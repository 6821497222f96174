"""Distributed shuffle: blocks send messages to buckets, and buckets send replies to blocks.

`fan_out` processes each unit alone. Here, matching parts of different blocks meet in two Beam
shuffles (GroupByKey), whose keys are small numbers and whose values are packed arrays:

    map_block       block -> messages, each to a bucket
    reduce_bucket   bucket and its messages, unordered -> replies, each to a block
    apply_replies   block and its replies, unordered -> files in storage, and a small result

The written bytes may depend only on the numbers and on stored data, never on the order of messages.
A pipeline that loses a worker runs again as a whole; a finished one is not run again.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import apache_beam as beam

from cloze.core import storage
from cloze.core.artifacts.claim import Fence
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.runners.fan_out import (
    chdir_to,
    read_results,
    retry_lost_workers,
    run_pipeline,
    work_unit,
)

Message = tuple[int, bytes]  # receiver and content
FINISHED = "finished.json"
_LOGGER = logging.getLogger(__name__)


class ShuffleJob(Protocol):
    """The three steps of a shuffle; importable by name, as the functions of `fan_out` are."""

    def map_block(self, block: int) -> Iterator[Message]:
        """Yield the messages of a block to buckets."""

    def reduce_bucket(self, bucket: int, messages: Iterable[bytes]) -> Iterator[Message]:
        """Yield the replies of a bucket to blocks."""

    def apply_replies(self, block: int, replies: Iterable[bytes]) -> dict[str, Any]:
        """Write the results of a block from its replies, if any; return small JSON."""


def run_shuffle(
    build: BuildContext, step: str, work: ShuffleJob, blocks: int
) -> list[dict[str, Any]]:
    """Run a shuffle, and return the result of each block.

    Args:
        step: name of the step, of its scratch directory and of its progress.
        work: the three steps.
        blocks: number of blocks.

    Raises:
        ClozeError: a step failed; the message names it.
    """
    results = storage.join(build.scratch, step)
    finished = storage.join(results, FINISHED)
    if storage.exists(finished):
        stored: list[dict[str, Any]] = json.loads(storage.read_text(finished))
        return stored
    storage.make_dirs(results)
    started, shuffle = time.monotonic(), _Shuffle(work, results, build.fence)

    def construct(pipeline: beam.Pipeline) -> None:
        _construct(pipeline, shuffle, step, blocks)

    def run() -> None:
        run_pipeline(build, construct, blocks, step)

    retry_lost_workers(build, run, step)
    block_results = read_results(results, [_result(number) for number in range(blocks)])
    storage.write_bytes(finished, json.dumps(block_results).encode())
    _LOGGER.info("%s: %d blocks in %.1f s", step, blocks, time.monotonic() - started)
    build.report.progress(blocks, blocks, "blocks", {"step": step})
    return block_results


def _result(number: int) -> str:
    return f"{number:06d}.json"


def _construct(pipeline: beam.Pipeline, shuffle: _Shuffle, step: str, count: int) -> None:
    message = tuple[int, bytes]
    mapping = beam.ParDo(_Step(f"{step}, block", shuffle.map)).with_output_types(message)
    reducing = beam.ParDo(_Step(f"{step}, bucket", shuffle.reduce)).with_output_types(message)
    # Blocks without replies must run `apply_replies`, too.
    blocks, all_blocks = (
        beam.Create([(block, b"") for block in range(count)], reshuffle=True) for _ in range(2)
    )
    replies = (
        pipeline
        | "blocks" >> blocks.with_output_types(message)
        | "map" >> mapping
        | "to buckets" >> beam.GroupByKey()
        | "reduce" >> reducing
    )
    _ = (
        (replies, pipeline | "all blocks" >> all_blocks.with_output_types(message))
        | beam.Flatten()
        | "to blocks" >> beam.GroupByKey()
        | "apply" >> beam.ParDo(_Step(f"{step}, block", shuffle.apply))
    )


@dataclass(frozen=True, slots=True)
class _Shuffle:
    """The steps of a shuffle; `results`: directory of the results, which `fence` guards."""

    work: ShuffleJob
    results: str
    fence: Fence

    def map(self, block: int, _: bytes) -> Iterator[Message]:
        return self.work.map_block(block)

    def reduce(self, bucket: int, messages: Iterable[bytes]) -> Iterator[Message]:
        return self.work.reduce_bucket(bucket, messages)

    def apply(self, block: int, replies: Iterable[bytes]) -> Iterator[Message]:
        with storage.changing_after(self.fence.out, self.fence.check):
            result = self.work.apply_replies(block, filter(None, replies))
            file = storage.join(self.results, _result(block))
            storage.write_bytes(file, json.dumps(result).encode())
        return iter(())


class _Step(beam.DoFn):  # type: ignore[misc]
    """Runs one step; error messages name it and the block or bucket."""

    def __init__(self, what: str, run: Callable[[int, Any], Iterator[Message]]) -> None:
        self.what, self.run, self.directory = what, run, os.getcwd()

    def setup(self) -> None:
        chdir_to(self.directory)

    def process(self, element: tuple[int, Any]) -> Iterator[Message]:
        number, values = element
        with work_unit(f"{self.what} {number}"):
            yield from self.run(number, values)
