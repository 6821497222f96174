"""MLflow runs of a pipeline run: a parent run, a child run a node, a group run a matrix.

    sample 11-21 19:33    parameters, metrics for comparison, config.yaml, resolved.yaml, report
      pretrain            a node: parameters, metrics by step, system metrics, data, files, models
      finetune            a section with a matrix
        finetune@sst2-1

Cached nodes get no run; a run with cached nodes only leaves no trace. All records go to the spool,
so the server's state does not matter.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import to_jsonable_python

from cloze.core import accounts, storage
from cloze.core.errors import describe_os_error, shell_command
from cloze.core.humanize import agree
from cloze.core.secrets import redact
from cloze.core.stages.execute import BuildResult
from cloze.flows.graph import stages
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.tracking import metadata
from cloze.flows.tracking.node import MlflowNodeReporter, status_of
from cloze.flows.tracking.spool import DIRECTORY, FLUSH_SECONDS, STOP_SECONDS, Spool, tracking_uri

CONFIG, RESOLVED = "config.yaml", "resolved.yaml"
log = logging.getLogger(__name__)

STATUSES = ("FINISHED", "KILLED", "FAILED")  # the worst one last


def close_spool(spool: Spool, seconds: float = FLUSH_SECONDS) -> list[str]:
    """Close the spool, waiting up to `seconds` for the sender; return warnings."""
    warnings, is_sent = [], spool.close(seconds)
    if spool.failures:
        reason = describe_os_error(spool.failures[0], str(spool.path))
        warnings.append(f"some records of this run may never reach MLflow: {reason}")
    if not is_sent and importlib.util.find_spec("mlflow") is None:
        warnings.append(
            f"MLflow is not installed here: the records of this run wait in {spool.path}, and the "
            f"next run with 'cloze-pretraining-base[flows]' sends them"
        )
    elif spool.path.exists():
        warnings.append(
            f"MLflow at {redact(spool.uri)} has not taken all records of this run yet; the rest is "
            f"kept in {spool.path} and sent with the next run at the latest; `cloze doctor` says "
            f"what is wrong"
        )
    refused = spool.refused()
    if refused:
        reason = next(iter(refused))
        warnings.append(
            f"MLflow rejected {agree(f'{refused.total()} records')} (the first: {reason}); "
            f"`cloze doctor` lists them"
        )
    return warnings


class MlflowRunLogger:
    """MLflow records of a pipeline run.

    Call `begin`, then `node` for each attempt at a node and `finished` for each result, then `end`.
    """

    def __init__(self, runs: Path, project: str | None = None, owner: str = "") -> None:
        """Open a spool of a project (None: the environment's) in the runs directory `runs`."""
        self.spool = Spool(runs / DIRECTORY, tracking_uri(runs), project)
        self.owner = owner or accounts.user_name()
        self.runs, self.name = runs, ""
        self._run_id: str | None = None
        self._title: str | None = None
        self._config: Mapping[str, Any] = {}
        self._resolved: Mapping[str, Any] = {}
        self._parent: str | None = None
        self._is_single = False
        self._groups: dict[str, str] = {}  # section -> id of its run
        self._worst: dict[str, str] = {}  # section -> worst status of its nodes
        self._changing = threading.Lock()  # nodes run concurrently
        self._pending_metrics: dict[str, float] = {}  # metrics of cached nodes, until a run exists
        if any(path != self.spool.path for path in self.spool.directory.glob("*.jsonl")):
            self.spool.start_sender()  # of what earlier runs left

    def begin(
        self,
        name: str,
        config: Mapping[str, Any],
        resolved: Mapping[str, Any],
        run_id: str | None = None,
        title: str | None = None,
    ) -> None:
        """Start the run; it is recorded when its first node starts.

        Args:
            config: config as the user wrote it, for the parameters and `config.yaml`.
            resolved: complete config of every node, for `resolved.yaml`.
            run_id: id of a run that other processes may retry; they continue the same MLflow run.
            title: name in MLflow's list; None: `name` and the time.
        """
        self.name, self._run_id, self._title = name, run_id, title
        self._config, self._resolved = config, resolved

    def begin_single(self, name: str) -> None:
        """Start a single command; its node's run is called `name` and has no parent."""
        self.name, self._is_single = name, True

    def tags(self) -> dict[str, str]:
        """Return the tags of all runs; the source is the command that makes the run again."""
        source = "cloze" if self._is_single else shell_command("run", self.name).strip("`")
        own = {"cloze.owner": self.owner, "cloze.project": self.spool.project}
        return {**metadata.tags(), **own, "mlflow.source.name": source}

    def node(self, step: PlannedNode) -> MlflowNodeReporter:
        return MlflowNodeReporter(self, step)

    def finished(
        self, step: PlannedNode, result: BuildResult, record: MlflowNodeReporter | None = None
    ) -> None:
        """Record a node's artifact, built now (`record` has its run) or cached."""
        try:
            if record is not None:
                record.result(result)
            with self._changing:
                self._headline(step, result)
        except Exception as error:  # records must not stop the run
            words, kind = "recording %s in MLflow failed, the run continues: %s: %s", type(error)
            log.warning(words, step.name, kind.__name__, error)

    def _headline(self, step: PlannedNode, result: BuildResult) -> None:
        """Log the node's metrics and the report in the parent run."""
        manifest = result.manifest
        figures = stages.stage(manifest.stage).compared_metrics(manifest.summary)
        metrics = {metadata.metric_name(step.name, key): value for key, value in figures.items()}
        if self._parent is None:
            self._pending_metrics |= metrics
        else:
            self.spool.metrics(self._parent, metrics)
        report = manifest.summary.get("report")
        if report and self._parent is not None and not result.cached:
            self.spool.file(self._parent, storage.join(storage.absolute(step.artifact), report))

    def end(self, status: str = "FINISHED") -> None:
        """End the run: FINISHED, FAILED or KILLED."""
        for section, run in self._groups.items():
            self.spool.end_run(run, self._worst[section])
        if self._parent is not None:
            self.spool.end_run(self._parent, status)

    def close(self, error: BaseException | None) -> list[str]:
        """End the run by how its session ended and close the spool; return warnings."""
        self.end(status := status_of(error))
        return close_spool(self.spool, STOP_SECONDS if status == "KILLED" else FLUSH_SECONDS)

    def start_node_run(self, step: PlannedNode, build_id: str, tags: Mapping[str, str]) -> str:
        """Start a node's run and its parents; return the node run's id, the build id."""
        with self._changing:
            if self._is_single:
                self.spool.start_sender()
                return self.spool.start_run(self.name, tags=tags, run=build_id)
            parent = self._start()
            if step.name != step.node.section:
                parent = self._group(step.node.section, parent)
            self.spool.start_run(step.name, parent, tags, run=build_id)
        return build_id

    def end_node_run(self, step: PlannedNode, status: str) -> None:
        with self._changing:
            previous = self._worst.get(step.node.section, STATUSES[0])
            self._worst[step.node.section] = max(previous, status, key=STATUSES.index)

    def _start(self) -> str:
        if self._parent is None:
            self.spool.start_sender()
            # MLflow's list is narrow and shows the year itself
            name = self._title or f"{self.name} {time.strftime('%m-%d %H:%M')}"
            tags = {"cloze.kind": "pipeline", "cloze.name": self.name, **self.tags()}
            self._parent = self.spool.start_run(name, tags=tags, run=self._run_id)
            compared = self._config.keys() - {"name", "run"}  # which do not change the result
            written = {name: self._config[name] for name in self._config if name in compared}
            self.spool.params(self._parent, metadata.shortened(written))
            for file, content in ((CONFIG, self._config), (RESOLVED, self._resolved)):
                redacted = redact(to_jsonable_python(content, fallback=str))
                text = yaml.safe_dump(redacted, sort_keys=False, allow_unicode=True)
                self.spool.text(self._parent, file, text)
            self.spool.metrics(self._parent, self._pending_metrics)
        return self._parent

    def _group(self, section: str, parent: str) -> str:
        if section not in self._groups:
            tags = {"cloze.kind": "matrix", "cloze.node": section}
            run = f"{parent}/{section}" if self._run_id else None
            self._groups[section] = self.spool.start_run(section, parent, tags, run=run)
        return self._groups[section]
