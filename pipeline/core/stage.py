"""What a stage is: `config + input artifacts -> output artifact`, as a config model, a version and a function.

`pipeline.core.execute` does what all stages share.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.core import artifact, storage
from pipeline.core.config import StageConfig
from pipeline.core.cost import Costs
from pipeline.core.execution import Execution
from pipeline.core.reporting import SILENT, Reporter

SCRATCH = "_scratch"


@dataclass(slots=True)
class Build:
    """A stage's view of the artifact it is making.

    Write files below `path` (relative names without a leading `_`), scratch that a next try may use below
    `scratch`, and count what is dropped in `counters`, under names such as `dropped/too_short`. `build_id` names
    this artifact's making: every try at the same unfinished artifact has the same.
    """

    path: str
    inputs: Mapping[str, str]  # input's name -> path; of a role that takes several, see `pipeline.core.roles`
    execution: Execution
    fingerprint: str
    build_id: str = ""
    report: Reporter = SILENT
    counters: Counter[str] = field(default_factory=Counter)
    shared: dict[str, Any] = field(default_factory=dict)  # what the build's steps hold in common, such as an engine
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # ends it; left when the stage ends

    @property
    def scratch(self) -> str:
        return storage.join(self.path, SCRATCH)

    def file(self, *parts: str) -> str:
        return storage.join(self.path, *parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a stage's function returns, beside the files it wrote."""

    rows: int = 0
    tokens: int = 0
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a stage reads under a role: an artifact, or a directory or file that stands for one.

    Attributes:
        kinds: the stages whose artifact serves. In a run's graph the nearest node of these before it is taken; empty: none by itself.
        also: stages whose artifact serves, too, but only where the run's config names it.
        required: whether the stage cannot do without.
        named: whether it is taken only where the run's config names it.
        several: whether it takes more than one, which then have names (`pipeline.core.roles`).
        lends: fields of the config that are as the node says which serves, where the run's config does not say them: an evaluation
            reads the data that its model was trained on.
    """

    kinds: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    required: bool = False
    named: bool = False
    several: bool = False
    lends: tuple[str, ...] = ()


def no_headline(summary: Mapping[str, Any]) -> str:
    """Of a stage that has no figures to show."""
    del summary
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """All that there is to say of a stage, beside its module's place in the table of stages (flows/graph/stages.py).

    Attributes:
        version: raised when the same input gives other output, or a default of the config changes; a golden test looks after both.
        inputs: what it reads, by role.
        gathers: whether it reads every node of the run that does not; such inputs go by the node's name.
        volatile: patterns of files whose bytes hold times, left out of the content hash.
        worker: the package whose module `worker` runs it in a process of its own; None: it runs in the process that asks for it.
        parallel: whether it runs as several such processes, one a rank.
        outputs: the keys of its summary that hold paths relative to the artifact.
        headline: a short line for the terminal, from its summary: the figures that say most about the result.
        costs: what it will take, by arithmetic; None: nobody has said it.
        compared: the keys of its summary, or of what these hold, by which runs are compared; numbers in them.
    """

    name: str
    version: int
    config: type[StageConfig]
    run: Callable[[Any, Build], Outcome]
    inputs: Mapping[str, Input] = field(default_factory=dict)
    gathers: bool = False
    volatile: tuple[str, ...] = ()
    worker: str | None = None
    parallel: bool = False
    outputs: tuple[str, ...] = ()
    headline: Callable[[Mapping[str, Any]], str] = no_headline
    costs: Costs | None = None
    compared: tuple[str, ...] = ()

    def fingerprint(self, config: StageConfig, parents: Mapping[str, str]) -> str:
        """Args: parents: the fingerprints of the input artifacts by name."""
        return self.lineage(config, parents)[0]

    def lineage(self, config: StageConfig, parents: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """The fingerprint, and the fingerprints of everything it follows from: input artifacts and files that the config names."""
        everything = {**parents, **config.external_fingerprints()}
        return artifact.fingerprint(self.name, self.version, config.identity(), everything), everything
