"""Fan-out: run work units by Beam, balanced over the workers, with results in scratch files."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import json
import logging
import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cloze.core import errors, storage
from cloze.core.arrow import release_memory_to_os
from cloze.core.artifacts.fence import Fence
from cloze.core.errors import ClozeError, SupersededError, error_class, error_event
from cloze.core.stages.stage import BuildContext
from cloze.core.stages.worker import LOGS, local_directory
from cloze.pipeline.runners.base import CONTINUE, WorkerLostError, open_backend
from cloze.pipeline.runners.beam_worker import record_current_unit

IDLE = ""  # name of an empty unit


def balance_units(
    units: list[tuple[str, Any]], weights: list[float], workers: int
) -> list[tuple[str, Any]]:
    """Order the units so that all workers get about equal work.

    Beam's local runner and Flink assign element i to worker i modulo their number, whatever its
    weight. So the units are distributed first, the heaviest first and each to the worker with the
    least work (Graham's longest processing time rule). Idle elements fill up the shorter queues.
    For engines that assign elements dynamically (one worker here), the heaviest units come first.
    """
    queues: list[list[tuple[str, Any]]] = [[] for _ in range(max(1, min(workers, len(units))))]
    loads = [(0.0, worker) for worker in range(len(queues))]  # a heap
    for number in sorted(range(len(units)), key=lambda n: (-weights[n], n)):
        load, lightest = loads[0]
        queues[lightest].append(units[number])
        heapq.heapreplace(loads, (load + weights[number], lightest))
    longest = max(map(len, queues), default=0)
    return [
        queue[index] if index < len(queue) else (IDLE, None)
        for index in range(longest)
        for queue in queues
    ]


# The fan-out: work units become a Beam pipeline, which a backend runs.

POLL_SECONDS = 0.5
REMOTE_POLL_SECONDS = 3.0  # stores charge for listings
RESULT_THREADS = 16
BLOCK_UNITS = 1000  # names of an answer of a store
GRAPH_BYTES = 256 << 10  # of units in the job's graph; more are in a file, which workers read
_LOGGER = logging.getLogger(__name__)
DONE, FAILED = ".json", ".failed"  # suffixes of a unit's result file
WRITTEN = "_written"  # in a result: see `storage.hashing_written`
SHOWN = 3  # number of failed units' messages in the error


class _Unit:
    """Runs one unit unless its result file exists; the result file is written last.

    A unit of a superseded attempt commits no file. Elements are those of `pack_units`.
    """

    def __init__(
        self,
        function: Callable[[Any], dict[str, Any]],
        results: str,
        directory: str,
        fence: Fence,
        units: str = "",
    ) -> None:
        self.function, self.results, self.units = function, results, units
        self.directory, self.fence = directory, fence

    def process(self, element: str) -> Iterable[None]:
        chdir_to(self.directory)
        if element == IDLE:
            return ()
        with work_unit("units"):
            place, unit = json.loads(self._unpacked(element))
        with work_unit(posixpath.basename(place)):
            result_file = storage.join(self.results, place + DONE)
            if not storage.has_file(result_file):
                with (
                    storage.changing_after(self.fence.path, self.fence.check),
                    storage.hashing_written(self.fence.path) as written,
                ):
                    try:
                        result = self.function(unit)
                        if written:
                            result = {**result, WRITTEN: written}
                    except SupersededError:
                        raise
                    except ClozeError as error:  # no crash, no retries
                        result_file = storage.join(self.results, place + FAILED)
                        result = error_event(error)
                    storage.write_bytes(result_file, json.dumps(result).encode())
        return ()

    def _unpacked(self, element: str) -> str | bytes:
        if not self.units:
            return element
        low, high = map(int, element.split())
        return storage.read_ranges([self.units], [(low, high)])[0]


def chdir_to(directory: str) -> None:
    """Change to the stage's working directory, if it exists, so that relative paths are valid."""
    if os.getcwd() != directory and os.path.isdir(directory):
        os.chdir(directory)


class WorkUnitError(Exception):
    """A unit failed, not by the user's fault; engines may retry. The text has a marked message."""


@contextlib.contextmanager
def work_unit(name: str) -> Iterator[None]:
    """Do a unit's work in the block: record its name, and raise errors as `WorkUnitError`."""
    record_current_unit(name)
    try:
        yield
    except ClozeError as error:
        raise WorkUnitError(errors.wrap_message(str(error))) from error
    except Exception as error:
        _LOGGER.exception("unit %s failed", name)
        raise WorkUnitError(errors.wrap_message(errors.describe_error(name, error))) from error
    finally:
        release_memory_to_os()


def fan_out(
    build: BuildContext,
    step: str,
    units: list[tuple[str, Any]],
    function: Callable[[Any], dict[str, Any]],
    *,
    unit_name: str,
    weights: list[float] | None = None,
) -> list[dict[str, Any]]:
    """Run `function` on every unit by Beam, and return the results in the order of `units`.

    Units that an interrupted attempt finished are not run again: results are stored in the scratch.

    Args:
        step: name of the step, of its scratch directory and of its progress.
        units: (name, unit): unique names that are valid file names, and small JSON values.
        function: importable by name (a module-level function, or an instance of a module-level
            dataclass with `__call__`); returns small JSON.
        unit_name: what progress counts, such as `files`.
        weights: work of each unit, for balance and progress. Default: equal.

    Raises:
        ClozeError: of the kind of the first failed unit in order; its message covers all failures.
    """
    weight = dict(zip((name for name, _ in units), weights or [1.0] * len(units), strict=True))
    results = _Results(storage.join(build.scratch, step), weight)
    storage.make_dirs(results.directory)
    total = sum(weight.values())
    results.look()
    for name in results.names(FAILED):  # of an attempt that ended before it reported them
        storage.remove_file(storage.join(results.directory, results.place[name] + FAILED))
        del results.found[name]

    def run_rest() -> None:
        unfinished = [unit for unit in units if unit[0] not in results.found]
        if not unfinished:
            return
        unfinished_weights = [weight[name] for name, _ in unfinished]
        elements = balance_units(unfinished, unfinished_weights, open_backend(build).workers)
        jobs, text = pack_units((results.place.get(name, IDLE), unit) for name, unit in elements)
        file = ""
        if text:  # workers of an earlier attempt may still read its file
            digest = hashlib.sha256(text).hexdigest()
            file = storage.join(results.directory, f"units-{digest[:16]}")
            storage.write_bytes(file, text)
        work = _Unit(function, results.directory, os.getcwd(), build.fence, file)

        def construct(pipeline: Any) -> None:
            if pipeline is None:
                for job in jobs:
                    work.process(job)
                return
            import apache_beam as beam  # takes a second

            _ = pipeline | beam.Create(jobs, reshuffle=True) | beam.FlatMap(work.process)

        try:
            with _reporting_progress(build, results, weight, unit_name):
                run_pipeline(build, construct, len(unfinished), step)
        except WorkerLostError:
            results.look()
            raise

    retry_lost_workers(build, run_rest, step)
    build.report.progress(total, total, unit_name, {"step": step})
    results.look()
    failed = [results.place[name] for name in results.names(FAILED)]
    if failed:
        raise _failure(build, step, results.directory, failed, len(units))
    done = read_results(results.directory, [results.place[name] + DONE for name, _ in units])
    for result in done:
        storage.note_written(result.pop(WRITTEN, {}))
    return done


def pack_units(units: Iterable[tuple[str, Any]]) -> tuple[list[str], bytes]:
    """Return (place, unit) as JSON, or their ranges in the second value if it is too much for a
    graph; idle elements are empty.

    Beam's coder would reject file names that are no UTF-8.
    """
    packed = [json.dumps(unit) if unit[0] != IDLE else IDLE for unit in units]
    if sum(map(len, packed)) <= GRAPH_BYTES:
        return packed, b""
    edges = itertools.pairwise(itertools.accumulate(map(len, packed), initial=0))
    ranges = [f"{low} {high}" if low < high else IDLE for low, high in edges]
    return ranges, "".join(packed).encode()


class _Results:
    """Result files of the units of a step, one for each.

    More than `BLOCK_UNITS` units are in blocks, directories of units that run at about the same
    time. A block without unfinished units is not listed again, so a look costs what is new and
    under way, not what is done.
    """

    def __init__(self, directory: str, weight: Mapping[str, float]) -> None:
        names = sorted(weight, key=lambda name: -weight[name])  # as in `balance_units`
        blocks = -(-len(names) // BLOCK_UNITS)
        self.directory = directory  # of the step
        self.found: dict[str, str] = {}  # ending of each result that was seen
        self._open = {
            f"{block:05d}" if blocks > 1 else "": names[block * BLOCK_UNITS :][:BLOCK_UNITS]
            for block in range(blocks)
        }
        block_of = {name: block for block, inner in self._open.items() for name in inner}
        # path of each unit's result below the directory, without ending
        self.place = {name: posixpath.join(block_of[name], name) for name in weight}

    def look(self) -> None:
        """Find the results of units that had none."""
        present = self._open.keys() - {""} and set(storage.list_names(self.directory))
        for block in [block for block in self._open if not block or block in present]:
            names = self._open[block]
            for file in storage.list_names(posixpath.join(self.directory, block).rstrip("/")):
                name, ending = posixpath.splitext(file)
                if name in self.place and ending in (DONE, FAILED):
                    self.found[name] = ending
            if all(self.found.get(name) == DONE for name in names):
                del self._open[block]

    def names(self, ending: str) -> list[str]:
        """Return the units whose results have this ending, in their order."""
        return [name for name in self.place if self.found.get(name) == ending]


def _failure(
    build: BuildContext, step: str, results: str, failed: list[str], count: int
) -> ClozeError:
    """Build the error of failed units; remove their results so that a rerun retries them."""
    files = [name + FAILED for name in failed]
    failures = read_results(results, files)
    for file in files:
        storage.remove_file(storage.join(results, file))
    kind = error_class(failures[0])
    messages = list(dict.fromkeys(str(failure["error"]) for failure in failures))
    if len(messages) == 1:
        return kind(messages[0])
    log = str(local_directory(build.path) / LOGS / f"failed-{step}.txt")
    entries = [
        f"{posixpath.basename(place)}: {failure['error']}\n"
        for place, failure in zip(failed, failures, strict=True)
    ]
    storage.write_bytes(log, "".join(entries).encode("utf-8", "backslashreplace"))
    shown = "; ".join(f"({number}) {text}" for number, text in enumerate(messages[:SHOWN], 1))
    remainder = f"; the others are in {log}" if len(messages) > SHOWN else ""
    return kind(f"{len(failed)} of {count} units of step {step} failed: {shown}{remainder}")


def retry_lost_workers(build: BuildContext, run: Callable[[], None], step: str) -> None:
    """Call `run`, and again after the loss of a worker, as often as the backend allows."""
    for attempt in itertools.count(1):
        try:
            run()
            return
        except WorkerLostError as error:
            retries = open_backend(build).retries
            if attempt > retries:
                raise
            _LOGGER.warning("retry %d of %d of step %s: %s", attempt, retries, step, error)


def run_pipeline(
    build: BuildContext, construct: Callable[[Any], None], units: int, step: str
) -> None:
    """Run a pipeline on the build's backend; see `RunnerBackend.run`.

    Raises:
        ClozeError: a unit failed; the message is the one in its exception's text.
    """
    try:
        open_backend(build).run(construct, units, step)
    except ClozeError:
        raise
    except Exception as error:
        message = errors.extract_message(str(error))
        if message is None:
            raise
        raise ClozeError(f"{message}; {CONTINUE}") from error


def read_results(results: str, files: list[str]) -> list[dict[str, Any]]:
    """Read result files concurrently, because a store answers each request slowly."""
    with ThreadPoolExecutor(RESULT_THREADS) as pool:
        return [
            json.loads(text)
            for text in pool.map(lambda file: storage.read_text(storage.join(results, file)), files)
        ]


@contextlib.contextmanager
def _reporting_progress(
    build: BuildContext, results: _Results, weight: dict[str, float], unit_name: str
) -> Iterator[None]:
    """Report the units whose result files exist, by a thread, during the block."""
    step, ended = posixpath.basename(results.directory), threading.Event()
    seconds = POLL_SECONDS if storage.is_local(results.directory) else REMOTE_POLL_SECONDS
    total = sum(weight.values())

    def report() -> None:
        while not ended.wait(seconds):
            results.look()
            done = sum(weight[name] for name in results.found)
            build.report.progress(done, total, unit_name, {"step": step})

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
