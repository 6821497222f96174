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
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import apache_beam as beam

from cloze.core import errors, storage
from cloze.core.arrow import release_memory_to_os
from cloze.core.artifacts.claim import Fence
from cloze.core.errors import ClozeError
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.runners.beam_worker import record_current_unit
from cloze.pipeline.runners.fan_out import (
    WorkUnitError,
    chdir_to,
    read_results,
    retry_lost_workers,
    run_pipeline,
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
    build: BuildContext, step: str, work: ShuffleJob, senders: int, receivers: int | None = None
) -> list[dict[str, Any]]:
    """Run a shuffle, and return the result of each block.

    Args:
        step: name of the step, of its scratch directory and of its progress.
        work: the three steps.
        senders: number of blocks that send messages.
        receivers: number of blocks that receive replies. Default: `senders`.

    Raises:
        ClozeError: a step failed; the message names it.
    """
    results = storage.join(build.scratch, step)
    finished = storage.join(results, FINISHED)
    if storage.exists(finished):
        stored: list[dict[str, Any]] = json.loads(storage.read_text(finished))
        return stored
    storage.make_dirs(results)
    count = senders if receivers is None else receivers
    started, fence = time.monotonic(), build.fence

    def construct(pipeline: beam.Pipeline) -> None:
        _construct(pipeline, work, senders, count, results, fence)

    def run() -> None:
        run_pipeline(build, construct, max(senders, count), step)

    retry_lost_workers(build, run, step)
    block_results = read_results(results, [_result(number) for number in range(count)])
    storage.write_bytes(finished, json.dumps(block_results).encode())
    _LOGGER.info("%s: %d blocks to %d in %.1f s", step, senders, count, time.monotonic() - started)
    build.report.progress(count, count, "blocks", {"step": step})
    return block_results


def _result(number: int) -> str:
    return f"{number:06d}.json"


def _construct(
    pipeline: beam.Pipeline,
    work: ShuffleJob,
    senders: int,
    receivers: int,
    results: str,
    fence: Fence,
) -> None:
    step, directory = results.rsplit("/", 1)[-1], os.getcwd()
    mapping = beam.ParDo(_Map(work, step, directory)).with_output_types(tuple[int, bytes])
    reducing = beam.ParDo(_Reduce(work, step, directory)).with_output_types(tuple[int, bytes])
    replies = (
        pipeline
        | "blocks" >> beam.Create(list(range(senders)), reshuffle=True).with_output_types(int)
        | "map" >> mapping
        | "to buckets" >> beam.GroupByKey()
        | "reduce" >> reducing
    )
    # Blocks without replies must run `apply_replies`, too.
    empty_replies = [(block, b"") for block in range(receivers)]
    all_blocks = pipeline | "all blocks" >> beam.Create(empty_replies).with_output_types(
        tuple[int, bytes]
    )
    _ = (
        (replies, all_blocks)
        | beam.Flatten()
        | "to blocks" >> beam.GroupByKey()
        | "apply" >> beam.ParDo(_Apply(work, step, directory, results, fence))
    )


class _Step(beam.DoFn):  # type: ignore[misc]
    """Base of the three steps; error messages name the step and the block or bucket."""

    what = ""

    def __init__(self, work: ShuffleJob, step: str, directory: str) -> None:
        self.work, self.step, self.directory = work, step, directory

    def setup(self) -> None:
        chdir_to(self.directory)

    def report_errors(self, number: int, items: Iterable[Any]) -> Iterator[Any]:
        name = f"{self.step}, {self.what} {number}"
        record_current_unit(name)
        try:
            yield from items
        except ClozeError as error:
            raise WorkUnitError(errors.wrap_message(str(error))) from error
        except Exception as error:
            _LOGGER.exception("%s failed", name)
            raise WorkUnitError(errors.wrap_message(errors.describe_error(name, error))) from error
        finally:
            release_memory_to_os()


class _Map(_Step):
    what = "block"

    def process(self, element: int) -> Iterator[Message]:
        yield from self.report_errors(element, self.work.map_block(element))


class _Reduce(_Step):
    what = "bucket"

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Message]:
        bucket, messages = element
        yield from self.report_errors(bucket, self.work.reduce_bucket(bucket, messages))


class _Apply(_Step):
    what = "block"

    def __init__(
        self, work: ShuffleJob, step: str, directory: str, results: str, fence: Fence
    ) -> None:
        super().__init__(work, step, directory)
        self.results, self.fence = results, fence

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[None]:
        yield from self.report_errors(element[0], self._apply(*element))

    def _apply(self, block: int, replies: Iterable[bytes]) -> Iterator[None]:
        with storage.changing_after(self.fence.check):
            result = self.work.apply_replies(block, filter(None, replies))
            file = storage.join(self.results, _result(block))
            storage.write_bytes(file, json.dumps(result).encode())
        yield from ()
