"""How a Beam pipeline is run: from `Execution`, the options; from a list of work units, a pipeline.

Every job here is a sequence of *fan-outs*: a list of small JSON-like work units, a function that does one unit
and writes its heavy bytes to storage, and small results that come back. The function must be idempotent
(it may run twice, on any worker), and its output may depend on the unit alone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline import storage
from pipeline.errors import BY_EXIT_CODE, ClozeError
from pipeline.stage import Build, Execution

POLL_SECONDS = 0.5
IDLE = ""  # the name of a unit that is nothing to do


def pipeline_options(execution: Execution, units: int) -> PipelineOptions:
    """Beam's options. `local` is one process, or up to `workers` processes of Beam's own local runner, never more than units."""
    if execution.runner == "local":
        flags = ["--runner=FnApiRunner"]
        workers = min(execution.workers, units)
        if workers > 1:
            flags += ["--direct_running_mode=multi_processing", f"--direct_num_workers={workers}"]
    else:
        flags = [f"--runner={execution.runner}"]
    return PipelineOptions([*flags, *execution.beam_options])


class _Unit(beam.DoFn):  # type: ignore[misc]
    """Does one unit, unless its result file says that an earlier try did; the result file is written last."""

    def __init__(self, function: Callable[[Any], dict[str, Any]], results: str) -> None:
        self.function, self.results = function, results

    def process(self, element: tuple[str, Any]) -> Iterable[None]:
        name, unit = element
        if name == IDLE:
            return ()
        result_file = storage.join(self.results, f"{name}.json")
        if not storage.exists(result_file):
            try:
                result: dict[str, Any] = {"result": self.function(unit)}
            except ClozeError as error:  # a user's fault is told as one, not as a worker's crash and its retries
                result = {"error": str(error), "exit_code": error.exit_code}
            storage.write_bytes(result_file, json.dumps(result).encode())
        return ()


def dealt(units: list[tuple[str, Any]], weights: list[float], workers: int) -> list[tuple[str, Any]]:
    """The units in an order that gives each worker equal work.

    Beam's local runner deals element i to worker i modulo their number, whatever they weigh. So the units are shared out
    first, the heaviest first and each to the lightest worker, and the shorter hands are filled up with idle elements.
    """
    hands: list[list[tuple[str, Any]]] = [[] for _ in range(max(1, min(workers, len(units))))]
    loads = [0.0] * len(hands)
    for number in sorted(range(len(units)), key=lambda n: (-weights[n], n)):
        lightest = loads.index(min(loads))
        hands[lightest].append(units[number])
        loads[lightest] += weights[number]
    longest = max(map(len, hands), default=0)
    return [hand[place] if place < len(hand) else (IDLE, None) for place in range(longest) for hand in hands]


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
        units: (name, unit): names unique and fit for files, units small and picklable.
        function: importable by name (module level or an instance of a module-level dataclass with `__call__`);
            returns small JSON.
        unit_name: what is counted in progress, such as `files`.
        weights: the work in each unit, for progress; equal by default.

    Raises:
        ClozeError: of the kind that `function` raised, for the first unit in order that did.
    """
    results = storage.join(build.scratch, step)
    storage.make_dirs(results)
    weight = dict(zip((name for name, _ in units), weights or [1.0] * len(units), strict=True))
    done = {name for name, _ in units if storage.exists(storage.join(results, f"{name}.json"))}
    todo = [unit for unit in units if unit[0] not in done]
    total = sum(weight.values())
    if todo:
        with _watch(build, results, weight, total, unit_name):
            options = pipeline_options(build.execution, len(todo))
            elements: list[tuple[str, Any]] = todo
            if build.execution.runner == "local":
                elements = dealt(todo, [weight[name] for name, _ in todo], build.execution.workers)
            with beam.Pipeline(options=options) as p:
                _ = p | beam.Create(elements, reshuffle=True) | beam.ParDo(_Unit(function, results))
    build.report(total, total, unit_name, {"step": step})
    collected = []
    for name, _ in units:
        content = json.loads(storage.read_text(storage.join(results, f"{name}.json")))
        if "error" in content:
            storage.remove(storage.join(results, f"{name}.json"))
            raise BY_EXIT_CODE.get(content["exit_code"], ClozeError)(content["error"])
        collected.append(content["result"])
    return collected


class _watch:
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
        while not self._ended.wait(POLL_SECONDS):
            names = (name.removesuffix(".json") for name in storage.list_files(results))
            build.report(sum(weight.get(name, 0.0) for name in names), total, unit_name, {"step": step})
