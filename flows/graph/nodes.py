"""The nodes of a run's graph: what each is, where its inputs come from, and how names and patterns choose among them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from flows.graph import stages
from pipeline.core.checkpoints import STEPS, step_name
from pipeline.core.config import StageConfig
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.execution import Execution

LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")  # of a section; an instance's also holds what its values hold, such as dots
KEPT_STEP = re.compile(r"step-(\d+)")  # in a reference: `pretrain/step-8000`


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an input of a node comes from.

    Attributes:
        node: the node that makes it; None: it is no part of the run.
        path: below the node's artifact, such as `checkpoints/step-00008000`; without a node a path by itself.
    """

    node: str | None = None
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One artifact of a run.

    Attributes:
        name: `stage`, `stage@label`, or of an instance `stage@label-value-value`.
        stage: the name of its stage.
        section: the section of the config that says it; an instance shares it with others.
        values: its place in the matrices, by axis.
        execution: how it is run.
        inputs: by role; of a stage that gathers, by the nodes' names.
    """

    name: str
    stage: str
    section: str
    values: Mapping[str, Any]
    config: StageConfig
    execution: Execution
    inputs: Mapping[str, Origin]

    @property
    def after(self) -> tuple[str, ...]:
        """The nodes that it needs, each once."""
        return tuple(dict.fromkeys(origin.node for origin in self.inputs.values() if origin.node is not None))


def stage_of(section: str) -> str | None:
    """The stage that a section's name says, `pretrain` of `pretrain@512`; None where it is no node's name."""
    name, at, label = section.partition("@")
    return name if name in stages.TABLE and (not at or LABEL.fullmatch(label)) else None


def kept_part(part: str, reference: str) -> str:
    """The path below an artifact that the part of a reference after the node's name means.

    Raises:
        UsageError: it leads out of the artifact.
    """
    kept = KEPT_STEP.fullmatch(part)
    if kept:
        return f"{STEPS}/{step_name(int(kept[1]))}"
    if part.startswith("/") or ".." in part.split("/"):
        raise UsageError(f"{reference!r} leads out of its node; name a kept checkpoint, such as pretrain/step-8000")
    return part


def select(nodes: Mapping[str, Node], wanted: Iterable[str], run: str) -> set[str]:
    """The nodes that names and patterns mean: a node's own name, its section's or stage's for all instances, or `finetune@sst2-*`.

    Raises:
        UsageError: one of them means none; the nearest name is told.
    """
    found: set[str] = set()
    for name in wanted:
        groups = ({n for n in nodes if n == name}, {n for n, node in nodes.items() if node.section == name})
        matches = next((group for group in groups if group), None)
        matches = matches or {n for n, node in nodes.items() if node.stage == name or fnmatchcase(n, name)}
        if not matches:
            known = {*nodes, *(node.section for node in nodes.values())}
            raise UsageError(f"{name!r} is no node of run {run!r}; {did_you_mean(name, known)}")
        found |= matches
    return found


def with_what_follows(nodes: Mapping[str, Node], names: Collection[str]) -> set[str]:
    """The nodes of those names and all that need them. `nodes` are in an order in which inputs come first."""
    found = set(names)
    for name, node in nodes.items():
        if found.intersection(node.after):
            found.add(name)
    return found


def with_what_leads_to(nodes: Mapping[str, Node], names: Collection[str]) -> set[str]:
    """The nodes of those names and all that they need. `nodes` are in an order in which inputs come first."""
    found = set(names)
    for name in reversed(list(nodes)):
        if name in found:
            found.update(nodes[name].after)
    return found
