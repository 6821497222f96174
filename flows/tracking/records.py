"""A run's records in MLflow: a run for the pipeline, one below it a node that is made, and one between where a section has instances.

    sample 11-21 19:33             parameters of the run's config, the nodes' figures by which runs are compared, config.yaml, resolved.yaml, the report
      pretrain                     a node: parameters, metrics by step, load of the machine, datasets, files, checkpoints as models
      finetune                     a section with a matrix
        finetune@sst2-1

Nothing of what was made before makes a run; a run of which nothing is made leaves no trace. All goes to the spool, whatever the server does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import to_jsonable_python

from flows.graph import stages
from flows.tracking import code, params
from flows.tracking.node import NodeFacts, NodeRecord
from flows.tracking.spool import DIRECTORY, EXPERIMENT, FLUSH_SECONDS, Spool, tracking_uri
from pipeline.core.execute import Result
from pipeline.core.reporting import SILENT, Reporter
from pipeline.core.secrets import masked

CONFIG, RESOLVED = "config.yaml", "resolved.yaml"
log = logging.getLogger(__name__)

STATUSES = ("FINISHED", "KILLED", "FAILED")  # the worst one last


def closed(spool: Spool, seconds: float = FLUSH_SECONDS) -> list[str]:
    """Close the spool, waiting a little for the sender. Returns what the user should know, a sentence each."""
    told = []
    if not spool.close(seconds):
        told.append(
            f"MLflow at {masked(spool.uri)} has not taken all records yet; they wait in {spool.directory} for the next run"
        )
    refused = spool.refused()
    if refused:
        reason = next(iter(refused))
        told.append(
            f"MLflow refused {refused.total()} records (the first: {reason}); they are set aside, `cloze doctor` lists them"
        )
    return told


class RunRecords:
    """The records of one run of the pipeline. Use `begin`, then `node` for each node that is tried, then `finished`, then `end`."""

    def __init__(self, runs: Path, experiment: str = EXPERIMENT) -> None:
        """Args: runs: the runs' directory."""
        self.spool = Spool(runs / DIRECTORY, tracking_uri(runs), experiment)
        self.name = ""
        self._run_id: str | None = None
        self._config: Mapping[str, Any] = {}
        self._resolved: Mapping[str, Any] = {}
        self._parent: str | None = None
        self._groups: dict[str, str] = {}  # section -> our id of its run
        self._worst: dict[str, str] = {}  # section -> the worst status below it
        self._changing = threading.Lock()  # nodes run beside each other
        self._held: dict[str, float] = {}  # figures of nodes that were made before, until there is a run to log them in
        self._builds: dict[str, str] = {}  # node -> our id of its run
        if self.spool.has_leftovers():
            self.spool.start_sender()

    def begin(self, name: str, config: Mapping[str, Any], resolved: Mapping[str, Any], run_id: str | None = None) -> None:
        """The run begins; MLflow hears of it when its first node does.

        Args:
            name: the run's.
            config: what it is made from, for the parameters and `config.yaml`.
            resolved: every node's whole config, for `resolved.yaml`.
            run_id: names a run that other processes may try again: they go on in the same run of MLflow.
        """
        self.name, self._run_id = name, run_id
        self._config, self._resolved = config, resolved

    def node(self, facts: NodeFacts, display: Reporter = SILENT) -> NodeRecord:
        """The reporter of a node, a context manager around its making; passes on to `display` what that shows."""
        return NodeRecord(self, facts, display)

    def finished(self, facts: NodeFacts, result: Result, record: NodeRecord | None = None) -> None:
        """A node's artifact is there, made now (`record` knows its run) or before."""
        try:
            if record is not None:
                record.result(result)
            with self._changing:
                self._headline(facts, result)
        except Exception as error:  # the records are worth less than the run
            log.warning("recording %s failed, the run goes on: %s: %s", facts.name, type(error).__name__, error)

    def _headline(self, facts: NodeFacts, result: Result) -> None:
        """The node's figures, and the report, in the run above."""
        manifest = result.manifest
        figures = stages.figures(facts.stage, manifest.summary)
        named = {params.metric_name(facts.name, key): value for key, value in figures.items()}
        if self._parent is None:
            self._held |= named
        else:
            self.spool.metrics(self._parent, named)
        report = manifest.summary.get("report")
        if report and self._parent is not None and not result.cached:
            self.spool.file(self._parent, str(Path(facts.artifact).resolve() / report))

    def end(self, status: str = "FINISHED") -> None:
        """The run has ended: FINISHED, FAILED or KILLED."""
        for section, run in self._groups.items():
            self.spool.end_run(run, self._worst[section])
        if self._parent is not None:
            self.spool.end_run(self._parent, status)

    def close(self, seconds: float = FLUSH_SECONDS) -> list[str]:
        """Wait a little for the sender. Returns what the user should know, a sentence each."""
        return closed(self.spool, seconds)

    def run_of(self, node: str) -> str | None:
        """Our id of the run of a node that was begun, see `flows.tracking.links.page`."""
        return self._builds.get(node)

    def begun(self, facts: NodeFacts, build_id: str, tags: Mapping[str, str]) -> str:
        """Start a node's run, and those above it. Returns our id of it: the build id."""
        with self._changing:
            parent = self._start()
            if facts.name != facts.section:
                parent = self._group(facts.section, parent)
            self._builds[facts.name] = self.spool.start_run(facts.name, parent, tags, run=build_id)
        return build_id

    def ended(self, facts: NodeFacts, status: str) -> None:
        """A node's run has ended."""
        with self._changing:
            before = self._worst.get(facts.section, STATUSES[0])
            self._worst[facts.section] = max(before, status, key=STATUSES.index)

    def _start(self) -> str:
        if self._parent is None:
            self.spool.start_sender()
            name = f"{self.name} {time.strftime('%m-%d %H:%M')}"  # MLflow's list has little room, and the year beside it
            tags = {"cloze.kind": "pipeline", "cloze.name": self.name, **code.tags()}
            self._parent = self.spool.start_run(name, tags=tags, run=self._run_id)
            self.spool.tags(self._parent, {"cloze.attempt": str(self.spool.attempt(self._parent))})
            self.spool.params(self._parent, params.of_run(self._config))
            for file, content in ((CONFIG, self._config), (RESOLVED, self._resolved)):
                plain = masked(to_jsonable_python(content, fallback=str))
                self.spool.text(self._parent, file, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
            self.spool.metrics(self._parent, self._held)
        return self._parent

    def _group(self, section: str, parent: str) -> str:
        if section not in self._groups:
            tags = {"cloze.kind": "matrix", "cloze.node": section}
            run = f"{parent}/{section}" if self._run_id else None
            self._groups[section] = self.spool.start_run(section, parent, tags, run=run)
        return self._groups[section]
