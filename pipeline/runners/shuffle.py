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
from cloze.pipeline.runners.base import WorkerLostError, open_backend
from cloze.pipeline.runners.beam_worker import record_current_unit
from cloze.pipeline.runners.fan_out import WorkUnitError, chdir_to, read_results, run_pipeline

Message = tuple[int, bytes]  # receiver and content
FINISHED = "finished.json"
_LOGGER = logging.getLogger(__name__)


class ShuffleJob(Protocol):
    """The three steps of a shuffle; importable by name, as the functions of `fan_out` are."""

    def map_block(self, block: int) -> Iterator[Message]:
        """Yield the messages of a block to buckets."""

    def reduce_bucket(self, bucket: int, messages: Iterable[bytes]) -> Iterator[Message]:
        """Yield the replies of a bucket to blocks."""

    def apply_replies(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        """Write the results of a block from its replies, if any; return small JSON."""


def run_shuffle(
    build: BuildContext, step: str, work: ShuffleJob, asking: int, settling: int | None = None
) -> list[dict[str, Any]]:
    """Run a shuffle, and return the result of each block.

    Args:
        step: name of the step, of its scratch directory and of its progress.
        work: the three steps.
        asking: number of blocks that send messages.
        settling: number of blocks that receive replies. Default: `asking`.

    Raises:
        ClozeError: a step failed; the message names it.
    """
    results = storage.join(build.scratch, step)
    finished = storage.join(results, FINISHED)
    if storage.exists(finished):
        found: list[dict[str, Any]] = json.loads(storage.read_text(finished))
        return found
    storage.make_dirs(results)
    count = asking if settling is None else settling
    attempt, fence = 0, build.fence
    began = time.monotonic()
    while True:
        engine = open_backend(build)
        try:
            run_pipeline(
                engine,
                lambda pipeline: _construct(pipeline, work, asking, count, results, fence),
                max(asking, count),
                step,
            )
        except WorkerLostError as error:
            attempt += 1
            if attempt > engine.retries:
                raise
            _LOGGER.warning("try %d of %d to do %s again: %s", attempt, engine.retries, step, error)
        else:
            break
    found = read_results(results, [_result(number) for number in range(count)])
    storage.write_bytes(finished, json.dumps(found).encode())
    _LOGGER.info("%s: %d blocks to %d in %.1f s", step, asking, count, time.monotonic() - began)
    build.report.progress(count, count, "blocks", {"step": step})
    return found


def _result(number: int) -> str:
    return f"{number:06d}.json"


def _construct(
    pipeline: beam.Pipeline,
    work: ShuffleJob,
    asking: int,
    settling: int,
    results: str,
    fence: Fence,
) -> None:
    step, directory = results.rsplit("/", 1)[-1], os.getcwd()
    asked = (
        pipeline
        | "blocks" >> beam.Create(list(range(asking)), reshuffle=True).with_output_types(int)
        | "ask" >> beam.ParDo(_Ask(work, step, directory)).with_output_types(tuple[int, bytes])
    )
    answered = (
        asked
        | "to buckets" >> beam.GroupByKey()
        | "match" >> beam.ParDo(_Match(work, step, directory)).with_output_types(tuple[int, bytes])
    )
    # Blocks without replies must run `apply_replies`, too.
    everybody = pipeline | "everybody" >> beam.Create(
        [(block, b"") for block in range(settling)]
    ).with_output_types(tuple[int, bytes])
    _ = (
        (answered, everybody)
        | beam.Flatten()
        | "to blocks" >> beam.GroupByKey()
        | "settle" >> beam.ParDo(_Settle(work, step, directory, results, fence))
    )


class _Step(beam.DoFn):  # type: ignore[misc]
    """Base of the three steps; error messages name the step and the block or bucket."""

    what = ""

    def __init__(self, work: ShuffleJob, step: str, directory: str) -> None:
        self.work, self.step, self.directory = work, step, directory

    def setup(self) -> None:
        chdir_to(self.directory)

    def told(self, number: int, todo: Iterable[Any]) -> Iterator[Any]:
        name = f"{self.step}, {self.what} {number}"
        record_current_unit(name)
        try:
            yield from todo
        except ClozeError as error:
            raise WorkUnitError(errors.wrap_message(str(error))) from error
        except Exception as error:
            _LOGGER.exception("%s failed", name)
            raise WorkUnitError(errors.wrap_message(errors.describe_error(name, error))) from error
        finally:
            release_memory_to_os()


class _Ask(_Step):
    what = "block"

    def process(self, element: int) -> Iterator[Message]:
        yield from self.told(element, self.work.map_block(element))


class _Match(_Step):
    what = "bucket"

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Message]:
        bucket, messages = element
        yield from self.told(bucket, self.work.reduce_bucket(bucket, messages))


class _Settle(_Step):
    what = "block"

    def __init__(
        self, work: ShuffleJob, step: str, directory: str, results: str, fence: Fence
    ) -> None:
        super().__init__(work, step, directory)
        self.results, self.fence = results, fence

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[None]:
        yield from self.told(element[0], self._settled(*element))

    def _settled(self, block: int, answers: Iterable[bytes]) -> Iterator[None]:
        with storage.changing_after(self.fence.check):
            result = self.work.apply_replies(block, filter(None, answers))
            storage.write_bytes(
                storage.join(self.results, _result(block)), json.dumps(result).encode()
            )
        yield from ()
