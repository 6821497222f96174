"""How work is spread: from a list of work units, a Beam pipeline, which an engine runs.

Every job here is a sequence of *fan-outs*: a list of small JSON-like work units, a function that does one unit
and writes its heavy bytes to storage, and small results that come back. The function must be idempotent
(it may run twice, on any worker), and its output may depend on the unit alone.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apache_beam as beam

from pipeline.core import storage, system_errors
from pipeline.core.arrow import give_back
from pipeline.core.errors import BY_EXIT_CODE, ClozeError
from pipeline.core.stage import Build
from pipeline.core.worker import LOGS, local_directory
from pipeline.engines.balance import IDLE, balanced
from pipeline.engines.base import Engine, WorkerLost
from pipeline.engines.beam_worker import tell_unit
from pipeline.engines.table import open_engine

POLL_SECONDS = 0.5
REMOTE_POLL_SECONDS = 3.0  # listings are billed
RESULT_THREADS = 16
_LOGGER = logging.getLogger(__name__)
DONE, FAILED = ".json", ".failed"  # how the names of a unit's result file end
SHOWN = 3  # of failed units' sentences, in the error


class _Unit(beam.DoFn):  # type: ignore[misc]
    """Does one unit, unless its result file says that an earlier try did; the result file is written last."""

    def __init__(self, function: Callable[[Any], dict[str, Any]], results: str, directory: str) -> None:
        self.function, self.results, self.directory = function, results, directory

    def setup(self) -> None:
        stand(self.directory)

    def process(self, element: tuple[str, str]) -> Iterable[None]:
        name, packed = element
        if name == IDLE:
            return ()
        unit = json.loads(packed)
        tell_unit(name)
        try:
            result_file = storage.join(self.results, name + DONE)
            if not storage.exists(result_file):
                try:
                    result = self.function(unit)
                except ClozeError as error:  # a user's fault is told as one, not as a worker's crash and its retries
                    result_file = storage.join(self.results, name + FAILED)
                    result = {"error": str(error), "exit_code": error.exit_code}
                storage.write_bytes(result_file, json.dumps(result).encode())
        except Exception as error:
            _LOGGER.exception("unit %s failed", name)
            raise UnitFailed(system_errors.mark(system_errors.sentence(name, error))) from error
        finally:
            give_back()
        return ()


def stand(directory: str) -> None:
    """Stand where the stage stands, if this machine has the place, so that relative paths in a config mean the same."""
    if os.getcwd() != directory and os.path.isdir(directory):
        os.chdir(directory)


class UnitFailed(Exception):
    """A unit could not be done, by no fault of the user's: engines may try again. Its text holds a sentence in marks."""


def fan_out(
    build: Build,
    step: str,
    units: list[tuple[str, Any]],
    function: Callable[[Any], dict[str, Any]],
    *,
    unit_name: str,
    weights: list[float] | None = None,
) -> list[dict[str, Any]]:
    """Run `function` on every unit by Beam, and return the results in the order of `units`.

    Units already done by an interrupted try are not done again: results lie in the build's scratch.

    Args:
        step: the step's name: its scratch directory and its name in progress.
        units: (name, unit): names unique and fit for files, units small, of what JSON knows.
        function: importable by name (module level or an instance of a module-level dataclass with `__call__`);
            returns small JSON.
        unit_name: what is counted in progress, such as `files`.
        weights: the work in each unit, for progress; equal by default.

    Raises:
        ClozeError: of the kind that `function` raised for the first unit in order that failed; its sentence tells of all that did.
    """
    results = storage.join(build.scratch, step)
    storage.make_dirs(results)
    weight = dict(zip((name for name, _ in units), weights or [1.0] * len(units), strict=True))
    total = sum(weight.values())
    for name in _names(results, FAILED):  # of a try that ended before it could tell
        storage.remove(storage.join(results, name + FAILED))
    attempt = 0
    while todo := _not_done(results, units):
        engine = open_engine(build)
        elements = balanced(todo, [weight[name] for name, _ in todo], engine.workers)
        try:
            with _Progress(build, results, weight, total, unit_name):
                _run(engine, elements, _Unit(function, results, os.getcwd()), len(todo), step)
        except WorkerLost as error:
            attempt += 1
            if attempt > engine.retries:
                raise
            _LOGGER.warning("try %d of %d to do what is left: %s", attempt, engine.retries, error)
        else:
            break
    build.report.progress(total, total, unit_name, {"step": step})
    failed = _names(results, FAILED)
    names = [name for name, _ in units]
    if failed:
        raise _failure(build, step, results, [name for name in names if name in failed], len(names))
    return read_results(results, [name + DONE for name in names])


def _names(results: str, *endings: str) -> set[str]:
    """The units that have a result file of one of these kinds."""
    files = storage.list_files(results)
    return {file.removesuffix(ending) for file in files for ending in endings if file.endswith(ending)}


def _not_done(results: str, units: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    done = _names(results, DONE, FAILED)
    return [unit for unit in units if unit[0] not in done]


def _failure(build: Build, step: str, results: str, failed: list[str], count: int) -> ClozeError:
    """The error of failed units. Their results are removed, so that they are tried again once their causes are mended."""
    files = [name + FAILED for name in failed]
    found = read_results(results, files)
    for file in files:
        storage.remove(storage.join(results, file))
    kind = BY_EXIT_CODE.get(found[0]["exit_code"], ClozeError)
    sentences = list(dict.fromkeys(str(content["error"]) for content in found))
    if len(sentences) == 1:
        return kind(sentences[0])
    place = str(local_directory(build.path) / LOGS / f"failed-{step}.txt")
    lines = (f"{name}: {content['error']}\n" for name, content in zip(failed, found, strict=True))
    storage.write_bytes(place, "".join(lines).encode("utf-8", "backslashreplace"))
    shown = "; ".join(f"({number}) {sentence}" for number, sentence in enumerate(sentences[:SHOWN], 1))
    rest = f"; the others are in {place}" if len(sentences) > SHOWN else ""
    return kind(f"{len(failed)} of {count} units of step {step} failed: {shown}{rest}")


def _run(engine: Engine, elements: list[tuple[str, Any]], work: _Unit, units: int, step: str) -> None:
    def construct(pipeline: beam.Pipeline) -> None:
        # Units travel as JSON: Beam's own coder refuses the paths of files whose names are no UTF-8.
        packed = [(name, json.dumps(unit)) for name, unit in elements]
        _ = pipeline | beam.Create(packed, reshuffle=True) | beam.ParDo(work)

    run_pipeline(engine, construct, units, step)


def run_pipeline(engine: Engine, construct: Callable[[beam.Pipeline], None], units: int, step: str) -> None:
    """Run a pipeline on an engine; see `Engine.run`.

    Raises:
        ClozeError: a unit failed, told by the sentence that it left.
    """
    try:
        engine.run(construct, units, step)
    except ClozeError:
        raise
    except Exception as error:
        told = system_errors.marked(str(error))
        if told is None:
            raise
        raise ClozeError(f"{told}; run again to go on: what is finished is kept") from error


def read_results(results: str, files: list[str]) -> list[dict[str, Any]]:
    """What the result files hold, read many at a time: a store answers each in its own good time."""
    with ThreadPoolExecutor(RESULT_THREADS) as pool:
        return [json.loads(text) for text in pool.map(lambda file: storage.read_text(storage.join(results, file)), files)]


class _Progress:
    """Reports the units whose result files have appeared, from a thread, while the pipeline runs."""

    def __init__(self, build: Build, results: str, weight: dict[str, float], total: float, unit_name: str) -> None:
        self._args = build, results, weight, total, unit_name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        build, results, weight, total, unit_name = self._args
        step = results.rsplit("/", 1)[-1]
        seconds = POLL_SECONDS if storage.is_local(results) else REMOTE_POLL_SECONDS
        while not self._ended.wait(seconds):
            done = sum(weight.get(name, 0.0) for name in _names(results, DONE, FAILED))
            build.report.progress(done, total, unit_name, {"step": step})
