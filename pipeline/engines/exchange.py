"""Work whose pieces must meet: blocks send messages to buckets, and answers come back, by the engine's own shuffle.

`fan_out` does each unit alone. Here what is alike in different blocks comes together, in two shuffles of Beam's (GroupByKey), whose keys
are small numbers and whose values are packed arrays:

    ask      a block's number -> messages, each to a bucket
    match    a bucket and its messages, in no order -> answers, each to a block
    settle   a block and its answers, in no order -> files in storage, and a small result

The bytes that these write may depend on the numbers and on what lies in storage alone, never on the order of messages. A pipeline that
loses a worker runs again as a whole; one that is finished is not run again, whoever asks.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import apache_beam as beam

from pipeline.core import storage, system_errors
from pipeline.core.arrow import give_back
from pipeline.core.errors import ClozeError
from pipeline.core.stage import Build
from pipeline.engines.base import WorkerLost
from pipeline.engines.beam_worker import tell_unit
from pipeline.engines.fan_out import UnitFailed, read_results, run_pipeline, stand
from pipeline.engines.table import open_engine

Message = tuple[int, bytes]  # whom it is for, and what it says
FINISHED = "finished.json"
_LOGGER = logging.getLogger(__name__)


class Exchange(Protocol):
    """What is sent, and what is made of it; importable by name, as `fan_out`'s functions are."""

    def ask(self, block: int) -> Iterator[Message]:
        """What a block sends, to buckets."""

    def match(self, bucket: int, messages: Iterable[bytes]) -> Iterator[Message]:
        """What a bucket sends, to blocks."""

    def settle(self, block: int, answers: Iterable[bytes]) -> dict[str, Any]:
        """What a block makes of the answers, which may be none. Returns small JSON."""


def exchange(build: Build, step: str, work: Exchange, asking: int, settling: int | None = None) -> list[dict[str, Any]]:
    """Let blocks exchange messages. Returns what each of them settled.

    Args:
        step: the step's name: its scratch directory and its name in progress.
        work: what they send.
        asking: how many blocks ask.
        settling: how many settle; as many by default.

    Raises:
        ClozeError: one of them failed; the sentence tells of it.
    """
    results = storage.join(build.scratch, step)
    finished = storage.join(results, FINISHED)
    if storage.exists(finished):
        found: list[dict[str, Any]] = json.loads(storage.read_text(finished))
        return found
    storage.make_dirs(results)
    count = asking if settling is None else settling
    attempt = 0
    began = time.monotonic()
    while True:
        engine = open_engine(build)
        try:
            run_pipeline(engine, lambda pipeline: _construct(pipeline, work, asking, count, results), max(asking, count), step)
        except WorkerLost as error:
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


def _construct(pipeline: beam.Pipeline, work: Exchange, asking: int, settling: int, results: str) -> None:
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
    # A block settles though nobody has an answer for it.
    everybody = pipeline | "everybody" >> beam.Create([(block, b"") for block in range(settling)]).with_output_types(
        tuple[int, bytes]
    )
    _ = (
        (answered, everybody)
        | beam.Flatten()
        | "to blocks" >> beam.GroupByKey()
        | "settle" >> beam.ParDo(_Settle(work, step, directory, results))
    )


class _Step(beam.DoFn):  # type: ignore[misc]
    """One of the three; what fails is told by the step's and the block's names."""

    what = ""

    def __init__(self, work: Exchange, step: str, directory: str) -> None:
        self.work, self.step, self.directory = work, step, directory

    def setup(self) -> None:
        stand(self.directory)

    def told(self, number: int, todo: Iterable[Any]) -> Iterator[Any]:
        name = f"{self.step}, {self.what} {number}"
        tell_unit(name)
        try:
            yield from todo
        except ClozeError as error:
            raise UnitFailed(system_errors.mark(str(error))) from error
        except Exception as error:
            _LOGGER.exception("%s failed", name)
            raise UnitFailed(system_errors.mark(system_errors.sentence(name, error))) from error
        finally:
            give_back()


class _Ask(_Step):
    what = "block"

    def process(self, element: int) -> Iterator[Message]:
        yield from self.told(element, self.work.ask(element))


class _Match(_Step):
    what = "bucket"

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Message]:
        bucket, messages = element
        yield from self.told(bucket, self.work.match(bucket, messages))


class _Settle(_Step):
    what = "block"

    def __init__(self, work: Exchange, step: str, directory: str, results: str) -> None:
        super().__init__(work, step, directory)
        self.results = results

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[None]:
        yield from self.told(element[0], self._settled(*element))

    def _settled(self, block: int, answers: Iterable[bytes]) -> Iterator[None]:
        result = self.work.settle(block, filter(None, answers))
        storage.write_bytes(storage.join(self.results, _result(block)), json.dumps(result).encode())
        yield from ()
