"""A node's run in MLflow, from the moment that its directory is claimed; a node that is there already has none.

The build id names the run, so a stage that was killed goes on in the run that it began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flows.graph import stages
from flows.tracking import code, params
from flows.tracking.models import RUN_NAME, Checkpoint
from flows.tracking.spool import Point, Spool, flatten
from flows.tracking.system import Sampler
from pipeline.core import artifact
from pipeline.core.artifact import Manifest
from pipeline.core.checkpoints import STEPS
from pipeline.core.config import StageConfig
from pipeline.core.errors import DataError, Stopped
from pipeline.core.execute import Result
from pipeline.core.reporting import Reporter

DATA_STAGES = ("corpus", "dataset")  # whose artifacts MLflow calls datasets
FILES = (".html", ".json", ".md", ".png", ".svg", ".tsv")  # of an artifact that MLflow gets, too
FILE_BYTES = 5_000_000
PROFILE = ("rows", "tokens", "documents", "bytes", "words", "mean_length", "masked_share", "padding_share", "length", "copies")
BEST = "best"  # opens the name of a summary's best measurement on the way
CHECKPOINT = "checkpoint"  # of a summary: where the artifact's checkpoint is


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is told of a node.

    Attributes:
        name: `finetune@sst2-1`.
        section: the section of the config that it is an instance of; the same as `name` where it is the only one.
        place: its values in the matrices, by axis.
        inputs: paths by role.
        world_size: the processes it runs in, on all machines.
    """

    name: str
    stage: str
    section: str
    config: StageConfig
    fingerprint: str
    artifact: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    place: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1


class Above(Protocol):
    """What a node's record needs of the run's: `flows.tracking.records.RunRecords`."""

    name: str
    spool: Spool

    def begun(self, facts: NodeFacts, build_id: str, tags: Mapping[str, str]) -> str:
        """Start the node's run, and those above it."""
        ...

    def ended(self, facts: NodeFacts, status: str) -> None:
        """The node's run has ended."""
        ...


class NodeRecord(Reporter):
    """Spools what a node reports, and passes progress on. Made by `RunRecords.node`; a context manager."""

    def __init__(self, records: Above, facts: NodeFacts, display: Reporter) -> None:
        self._records, self._facts, self._display, self._spool = records, facts, display, records.spool
        self.run: str | None = None  # our id
        self._dataset: tuple[str, str] | None = None  # what is trained on, as MLflow names it
        self._last: list[Point] = []  # the newest line
        self._lines: set[str] = set()  # the figures that lines have: their last value is the summary's
        self._sampler: Sampler | None = None

    def begin(self, build_id: str) -> None:
        facts = self._facts
        tags = {
            "cloze.kind": "node",
            "cloze.node": facts.name,
            "cloze.stage": facts.stage,
            "cloze.fingerprint": facts.fingerprint,
            "cloze.build": build_id,
            "cloze.artifact": str(Path(facts.artifact).absolute()),
            "cloze.world_size": str(facts.world_size),
            **code.tags(),
        }
        self.run = self._records.begun(facts, build_id, tags)
        attempt = str(self._spool.attempt(self.run))
        self._spool.tags(self.run, {"cloze.attempt": attempt, "mlflow.note.content": self._note(build_id)})
        self._spool.params(self.run, params.of_node(facts.config, facts.place))
        for role, path in facts.inputs.items():
            self._input(role, path)
        self._display.begin(build_id)

    def _note(self, build_id: str) -> str:
        """The run's description, in Markdown."""
        place = Path(self._facts.artifact).absolute()
        return (
            f"`{self._facts.name}`: artifact `{place}`, fingerprint `{self._facts.fingerprint[:12]}`, build `{build_id}`."
            f" `cloze lineage {place}` shows what it was made from, `cloze logs {place}` its output."
        )

    def _input(self, role: str, path: str) -> None:
        """Log an input that holds data."""
        assert self.run is not None
        try:
            manifest = artifact.read_manifest(path)
        except DataError:  # a checkpoint, a file
            return
        if manifest.stage in DATA_STAGES:
            found = self._spool.dataset(
                self.run,
                name=Path(path).name.removesuffix(f"-{manifest.fingerprint[:12]}"),
                fingerprint=manifest.fingerprint,
                source=str(Path(path).resolve()) if "://" not in path else path,
                profile=_profile(manifest),
                context="training" if manifest.stage == "dataset" else role,
            )
            if manifest.stage == "dataset":
                self._dataset = found

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        self._display.progress(done, total, unit, figures)

    def grace(self, seconds: float) -> None:
        self._display.grace(seconds)

    def metrics(self, values: Mapping[str, Any]) -> None:
        if self.run is not None:
            self._last = self._spool.line(self.run, values) or self._last
            self._lines.update(values)
        self._display.metrics(values)

    def checkpoint(self, step: int, path: str, figures: Sequence[Point] = ()) -> None:
        """A checkpoint to record as a model, with the figures of its step."""
        if self.run is not None:
            facts, place = self._facts, Path(path).resolve().relative_to(Path(self._facts.artifact).resolve()).as_posix()
            wanted = Checkpoint(
                path=path,
                # one that others can go on from is named as the graph names it
                fingerprint=f"{facts.fingerprint}/{place}" if place.startswith(f"{STEPS}/") else facts.fingerprint,
                build=self.run,
                node=facts.name,
                step=step,
                tags={RUN_NAME: self._records.name, "cloze.build": self.run},
            )
            here = [point for point in self._last if point[2] == step]
            self._spool.model(self.run, wanted, [*here, *figures], self._dataset)
        self._display.checkpoint(step, path)

    def processes(self, ids: Mapping[int, int]) -> None:
        self._end_sampler()
        run = self.run
        if ids and run is not None:
            self._sampler = Sampler(
                ids, lambda figures: self._spool.sample(run, figures), str(Path(self._facts.artifact).parent)
            )
        self._display.processes(ids)

    def stop_asked(self) -> bool:
        return self._display.stop_asked()

    def result(self, result: Result) -> None:
        """The figures, files, data and checkpoint of the finished artifact."""
        if self.run is None:
            return
        manifest, place = result.manifest, Path(self._facts.artifact).resolve()
        self._spool.params(self.run, params.settled(self._facts.config, manifest.summary))
        for entry in manifest.files:
            if "/" not in entry.path and entry.path.endswith(FILES) and entry.size <= FILE_BYTES:
                self._spool.file(self.run, str(place / entry.path))
        self._spool.file(self.run, str(place / artifact.MANIFEST))
        self._read_files(manifest)
        step = int(manifest.summary.get("steps", 0))
        compared = set(stages.figures(self._facts.stage, manifest.summary))
        logged = [point for point in self._spool.metrics(self.run, self._once(result)) if point[0] in compared]
        if CHECKPOINT in manifest.summary:
            self.checkpoint(step, str(place / manifest.summary[CHECKPOINT]), logged)

    def _once(self, result: Result) -> dict[str, Any]:
        """The figures that have one value: at step 0, for MLflow draws bars of them there.

        A training has curves, among which facts of its data would only be in the way; `manifest.json` has them.
        """
        manifest = result.manifest
        summary = dict(manifest.summary)
        figures: dict[str, Any] = {**summary.pop("metrics", {}), "seconds": result.seconds, **summary}
        if self._lines:
            return {name: value for name, value in flatten(figures) if name not in self._lines and not _is_nested(name)}
        figures["count"] = {key.replace("/", "."): number for key, number in manifest.counters.items()}
        return {params.allowed(name): value for name, value in flatten(figures)}  # a report's scores go by nodes' names

    def _read_files(self, manifest: Manifest) -> None:
        """Log the files that the config names: a task's examples, a corpus's sources."""
        assert self.run is not None
        for name in self._facts.config.path_fields():
            value, fingerprint = getattr(self._facts.config, name), manifest.parents.get(name)
            if isinstance(value, str) and fingerprint:
                label = f"{self._facts.place.get('task') or manifest.summary.get('task') or self._facts.stage} {name}"
                found = self._spool.dataset(self.run, name=label, fingerprint=fingerprint, source=value, context=name)
                self._dataset = self._dataset or found

    def _end_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def __enter__(self) -> NodeRecord:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._end_sampler()
        if self.run is not None:
            status = status_of(error)
            self._spool.end_run(self.run, status)
            self._records.ended(self._facts, status)


def status_of(error: BaseException | None) -> str:
    """How MLflow calls the end of a run that `error` ended, or nothing."""
    if error is None:
        return "FINISHED"
    stopped = isinstance(error, Stopped) or not isinstance(error, Exception)  # Ctrl-C, and Prefect's termination
    return "KILLED" if stopped else "FAILED"


def _is_nested(name: str) -> bool:
    return "." in name and not name.startswith(BEST)


def _profile(manifest: Manifest) -> dict[str, Any]:
    figures = {"rows": manifest.rows, "tokens": manifest.tokens, **manifest.summary}
    return {name: figures[name] for name in PROFILE if figures.get(name)}
