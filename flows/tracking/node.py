"""A node's MLflow run, from the claim of its directory on; a cached node has no run.

The build id is the run's id, so a retried stage continues the run that it started.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import Manifest
from cloze.core.artifacts.checkpoints import STEPS
from cloze.core.errors import DataError, is_stop, shell_command
from cloze.core.stages.execute import BuildResult
from cloze.core.stages.stage import CHECKPOINT, Reporter
from cloze.flows.graph import stages
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.tracking import metadata
from cloze.flows.tracking.metadata import SystemMetricsSampler
from cloze.flows.tracking.models import RUN_NAME, Checkpoint
from cloze.flows.tracking.spool import Point, Spool, flatten

DATA_STAGES = ("corpus", "dataset")  # datasets in MLflow
# artifact files that are copied to MLflow
FILES = (".html", ".json", ".md", ".png", ".svg", ".tsv")
FILE_BYTES = 5_000_000
# of a data artifact, in its MLflow dataset
PROFILE = "rows tokens documents bytes words mean_length masked_share padding_share length copies"
BEST = "best"  # prefix of a summary's best evaluation during training


class NodeRecords(Protocol):
    """What a node's reporter needs of its run's records."""

    spool: Spool
    name: str
    runs: Path

    def tags(self) -> dict[str, str]: ...

    def start_node_run(self, step: PlannedNode, build_id: str, tags: Mapping[str, str]) -> str: ...

    def end_node_run(self, step: PlannedNode, status: str) -> None: ...


class MlflowNodeReporter(Reporter):
    """Reporter that spools a node's reports; a context manager."""

    def __init__(self, records: NodeRecords, step: PlannedNode) -> None:
        self._records, self._planned, self._spool = records, step, records.spool
        self.run: str | None = None  # Cloze's id
        # MLflow's name and digest of the training data
        self._dataset: tuple[str, str] | None = None
        self._last: list[Point] = []  # the newest log entry
        self._lines: set[str] = set()  # names in log entries, whose last value is in the summary
        self._sampler: SystemMetricsSampler | None = None

    def build_started(self, build_id: str) -> None:
        planned, execution = self._planned, self._planned.node.execution
        is_parallel = stages.stage(planned.node.stage).parallel
        world_size = execution.processes * execution.nodes if is_parallel else 1
        tags = {
            "cloze.kind": "node",
            "cloze.node": planned.name,
            "cloze.stage": planned.node.stage,
            "cloze.fingerprint": planned.fingerprint,
            "cloze.build": build_id,
            "cloze.artifact": storage.absolute(planned.artifact),
            "cloze.world_size": str(world_size),
            **self._records.tags(),
        }
        self.run = self._records.start_node_run(planned, build_id, tags)
        note = (  # in Markdown
            f"`{planned.name}`: artifact `{tags['cloze.artifact']}`, fingerprint "
            f"`{planned.fingerprint[:12]}`, build `{build_id}`. "
            f"{shell_command('lineage', tags['cloze.artifact'])} shows what it was made from, "
            f"{shell_command('logs', tags['cloze.artifact'])} its output."
        )
        self._spool.tags(self.run, {"mlflow.note.content": note})
        self._spool.params(self.run, metadata.of_node(planned.node.config, planned.node.values))
        for role, path in planned.inputs.items():
            self._input(role, path)

    def _input(self, role: str, path: str) -> None:
        """Log an input that contains data."""
        assert self.run is not None
        try:
            manifest = artifact.read_manifest(path)
        except DataError:  # a checkpoint or a file
            return
        if manifest.stage in DATA_STAGES:
            facts = {"rows": manifest.rows, "tokens": manifest.tokens, **manifest.summary}
            dataset = self._spool.dataset(
                self.run,
                name=Path(path).name.removesuffix(f"-{manifest.fingerprint[:12]}"),
                fingerprint=manifest.fingerprint,
                source=storage.absolute(path),
                profile={name: facts[name] for name in PROFILE.split() if facts.get(name)},
                context="training" if manifest.stage == "dataset" else role,
            )
            if manifest.stage == "dataset":
                self._dataset = dataset

    def metrics(self, values: Mapping[str, Any]) -> None:
        if self.run is not None:
            curves = {
                name if name in ("step", "time") else metadata.curve_name(name): value
                for name, value in values.items()
            }
            self._last = self._spool.line(self.run, curves) or self._last
            self._lines.update(values)

    def checkpoint(self, step: int, path: str, figures: Sequence[Point] = ()) -> None:
        """Record a checkpoint as a model, with the metrics of its step."""
        if self.run is not None:
            planned = self._planned
            subpath = posixpath.relpath(path, planned.artifact)
            record = Checkpoint(
                path=path,
                # an intermediate checkpoint has the name that the graph uses
                fingerprint=f"{planned.fingerprint}/{subpath}"
                if subpath.startswith(f"{STEPS}/")
                else planned.fingerprint,
                build=self.run,
                node=planned.name,
                step=step,
                tags={RUN_NAME: self._records.name, "cloze.build": self.run},
            )
            points = [point for point in self._last if point[2] == step]
            self._spool.model(self.run, record, [*points, *figures], self._dataset)

    def processes(self, ids: Mapping[int, int]) -> None:
        self._end_sampler()
        run = self.run
        if ids and run is not None:
            directory = posixpath.dirname(self._planned.artifact)
            self._sampler = SystemMetricsSampler(
                ids,
                lambda figures: self._spool.sample(run, figures),
                directory if storage.is_local(directory) else str(self._records.runs),
            )

    def result(self, result: BuildResult) -> None:
        """Record the metrics, files, data and checkpoint of the finished artifact."""
        if self.run is None:
            return
        manifest, directory = result.manifest, storage.absolute(self._planned.artifact)
        self._spool.params(
            self.run, metadata.resolved_values(self._planned.node.config, manifest.summary)
        )
        for entry in manifest.files:
            if "/" not in entry.path and entry.path.endswith(FILES) and entry.size <= FILE_BYTES:
                self._spool.file(self.run, storage.join(directory, entry.path))
        self._spool.file(self.run, storage.join(directory, artifact.MANIFEST))
        self._read_files(manifest)
        step = int(manifest.summary.get("steps", 0))
        compared = {
            metadata.section_name(name)
            for name in stages.stage(manifest.stage).compared_metrics(manifest.summary)
        }
        points = [
            point
            for point in self._spool.metrics(self.run, self._once(result))
            if point[0] in compared
        ]
        if CHECKPOINT in manifest.summary:
            self.checkpoint(step, storage.join(directory, manifest.summary[CHECKPOINT]), points)

    def _once(self, result: BuildResult) -> dict[str, Any]:
        """Return single-valued metrics; they are logged at step 0, where MLflow draws bars.

        A training has curves, and data statistics would clutter them; `manifest.json` has those.
        """
        manifest = result.manifest
        summary = dict(manifest.summary)
        figures: dict[str, Any] = {
            **summary.pop("metrics", {}),
            "seconds": result.seconds,
            **summary,
        }
        if self._lines:
            return {
                metadata.section_name(name): value
                for name, value in flatten(figures)
                if name not in self._lines and ("." not in name or name.startswith(BEST))
            }
        figures["count"] = {
            key.replace("/", "."): number for key, number in manifest.counters.items()
        }
        # a report's scores have node names as keys
        return {metadata.section_name(name): value for name, value in flatten(figures)}

    def _read_files(self, manifest: Manifest) -> None:
        """Log the files that the config names: a task's examples, a corpus's sources."""
        assert self.run is not None
        node = self._planned.node
        for name in node.config.path_fields():
            value, fingerprint = getattr(node.config, name), manifest.parents.get(name)
            if isinstance(value, str) and fingerprint:
                task = node.values.get("task") or manifest.summary.get("task") or node.stage
                label = f"{task} {name}"
                dataset = self._spool.dataset(
                    self.run, name=label, fingerprint=fingerprint, source=value, context=name
                )
                self._dataset = self._dataset or dataset

    def _end_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def __enter__(self) -> MlflowNodeReporter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end_sampler()
        if self.run is not None:
            status = status_of(error)
            self._spool.end_run(self.run, status)
            self._records.end_node_run(self._planned, status)


def status_of(error: BaseException | None) -> str:
    """Return MLflow's status for a run that ended with `error`, or without one."""
    return "FINISHED" if error is None else "KILLED" if is_stop(error) else "FAILED"
