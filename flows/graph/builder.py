"""Nodes of a graph: one for each combination of a section's matrix and of its inputs' instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cloze.core.artifacts.checkpoints import parse_step
from cloze.core.config import StageConfig
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.stages.stage import role_of
from cloze.flows.graph.nodes import InputSource, Node
from cloze.flows.graph.overrides import combinations, merge, plain_axes, substitute_axes
from cloze.flows.graph.sections import (
    AVAILABLE,
    NEVER,
    InputFinder,
    LeftOutError,
    PartialGraph,
    Section,
    inherit,
    node_name,
    parse_when,
    spread_roles,
)

# matrix values and inputs by role of one node
InputChoice = tuple[dict[str, Any], dict[str, InputSource]]


class InstanceExpander:
    """Maker of the nodes of sections with named inputs."""

    def __init__(self, graph: PartialGraph, finder: InputFinder) -> None:
        self.graph, self.finder = graph, finder

    def expand(self, section: Section) -> Iterator[Node]:
        """Make the nodes of a section."""
        for combination, points in combinations(section.matrix, section.name):
            used_axes: set[str] = set()
            settings = dict(section.fields)
            for point in points:
                settings = merge(settings, point, section.stage.config, section.name)
            for point in points:  # alternatives, such as steps and tokens, are refused together
                settings = {**point, **settings}
            roles = {
                role: settings.pop(role) for role in list(settings) if role in section.stage.inputs
            }
            references = {**section.roles, **roles}
            for role, spec in section.stage.inputs.items():
                if role not in references and not spec.explicit_only:
                    references[role] = None
            references = dict(spread_roles(section, references))
            fields = section.stage.config.model_fields
            for axes, inputs in self._choices(section, references, combination, used_axes):
                values = dict(substitute_axes(settings, axes, used_axes.add))
                for axis in plain_axes(section.matrix) & combination.keys():
                    if axis in fields:
                        values[axis] = combination[axis]
                    elif axis not in used_axes:
                        raise UsageError(
                            f"{section.name}.matrix.{axis} is no field of {section.stage_name}, "
                            f"and nothing there says {{{axis}}};"
                            f" {did_you_mean(axis, fields)}"
                        )
                node = self.graph.add_node(
                    section, {**self._lent(section, inputs), **values}, axes, inputs
                )
                if node is not None:
                    yield node

    def _choices(
        self,
        section: Section,
        texts: Mapping[str, Any],
        axes: Mapping[str, Any],
        used_axes: set[str],
    ) -> Iterator[InputChoice]:
        """Yield from `_join_inputs`; record the node as left out if an input is left out."""
        try:
            yield from self._join_inputs(section, texts, axes, {}, used_axes)
        except LeftOutError as error:
            if str(error):  # without a message, the config itself excludes the node
                self.graph.left_out[node_name(section, axes)] = str(error)

    def _lent(self, section: Section, inputs: Mapping[str, InputSource]) -> dict[str, Any]:
        """Return the fields inherited from the input nodes; see `InputSpec.inherited_fields`."""
        return {
            field: getattr(self.graph.nodes[origin.node].config, field)
            for role, origin in inputs.items()
            if origin.node is not None
            for field in section.stage.inputs[role_of(role)].inherited_fields
            if field in type(self.graph.nodes[origin.node].config).model_fields
        }

    def _join_inputs(
        self,
        section: Section,
        texts: Mapping[str, Any],
        axes: Mapping[str, Any],
        selected: Mapping[str, InputSource],
        used_axes: set[str],
    ) -> Iterator[InputChoice]:
        """Yield every choice of one instance per role whose matrix values agree (a natural join).

        Args:
            section: the section whose inputs are chosen.
            texts: references by role; None: the config names none.
            axes: matrix values chosen so far.
            selected: input sources chosen so far, by role.
            used_axes: filled with the axes that references use as `{axis}`.
        """
        if not texts:
            yield dict(axes), dict(selected)
            return
        # a role that uses `{axis}` is resolved after the role that provides the axis
        role = next(
            (role for role, text in texts.items() if "{" not in str(substitute_axes(text, axes))),
            None,
        )
        if role is None:
            role = next(iter(texts))
            raise UsageError(
                f"{section.name}.{role} ({texts[role]!r}) refers to an axis that this node lacks;"
                f" use {set(axes) or '{}'}"
            )
        remaining = {other: text for other, text in texts.items() if other != role}
        reference = substitute_axes(texts[role], axes, used_axes.add)
        if matches := self.finder.matches(section, role, reference):
            yield from self._join_inputs(
                section, {**remaining, **matches}, axes, selected, used_axes
            )
            return
        candidates = list(self.finder.candidates(section, role, reference))
        if not candidates:
            yield from self._join_inputs(section, remaining, axes, selected, used_axes)
            return
        joined = [
            (values, origin)
            for values, origin in candidates
            if all(axes.get(axis, value) == value for axis, value in values.items())
        ]
        for values, origin in joined:
            yield from self._join_inputs(
                section, remaining, {**axes, **values}, {**selected, role: origin}, used_axes
            )
        if not joined and not selected:
            raise self._no_match(section, axes, *candidates[0])

    def _no_match(
        self,
        section: Section,
        axes: Mapping[str, Any],
        values: Mapping[str, Any],
        origin: InputSource,
    ) -> Exception:
        """Return the error of a node whose matrix values no instance of an input has.

        Args:
            section: the section of the node.
            axes: matrix values of the node.
            values: matrix values of an instance of the input.
            origin: that instance.
        """
        graph, source = self.graph, origin.node
        source_section = graph.nodes[source].section if source else source
        for other in graph.lacking:
            agrees = all(axes.get(axis, value) == value for axis, value in other.values.items())
            if source is not None and other.section == source_section and agrees:
                return LeftOutError(f"needs {other.name}, which is left out")
        if section.when == AVAILABLE:
            required = ", ".join(f"{axis} {axes[axis]}" for axis in values if axis in axes)
            return LeftOutError(f"no instance of {source_section} has {required}")
        return UsageError(
            f"no instance of {source} has the values {dict(axes)} of {section.name}'s "
            f"matrix; name its axes otherwise"
        )


GATHERED = "nodes"  # config field of stages that read all nodes
MILESTONES = "milestones"  # config field with the steps whose checkpoints are never deleted


class GraphBuilder:
    """Graph builder: first sections with named inputs, then those that read all nodes.

    Attributes:
        graph: nodes, and reasons for nodes that are left out.
    """

    def __init__(
        self,
        sections: Mapping[str, Mapping[str, Any]],
        run: Mapping[str, Any],
        tokenizer: str | None,
    ) -> None:
        """Build the graph.

        Args:
            sections: values of the sections, in the file's order.
            run: execution settings of the run.
            tokenizer: path of an existing vocabulary, which replaces the vocab node.
        """
        inherited = {name: inherit(sections, name) for name in sections}
        never = frozenset(
            name for name, values in inherited.items() if parse_when(name, values) == NEVER
        )
        active = {
            name: Section(name, values, run)
            for name, values in inherited.items()
            if name not in never
        }
        self.graph = PartialGraph(sections=active, never=never, tokenizer=tokenizer)
        self._expander = InstanceExpander(self.graph, InputFinder(self.graph, self.instances))
        self._instances: dict[str, list[Node]] = {}
        for reads_all in (False, True):
            for name, section in active.items():
                if section.stage.reads_all_nodes == reads_all:
                    self.instances(name)
        self._keep_milestones()

    def instances(self, name: str) -> list[Node]:
        """Return the nodes of a section, and make them first if necessary.

        Raises:
            UsageError: the nodes depend on each other in a cycle.
        """
        pending = self.graph.pending
        if name in pending:
            cycle = " -> ".join([*pending[pending.index(name) :], name])
            raise UsageError(
                f"the nodes need each other in a circle ({cycle}); name another input for one of "
                f"them"
            )
        if name not in self._instances:
            pending.append(name)
            section = self.graph.sections[name]
            make = self._gather if section.stage.reads_all_nodes else self._expander.expand
            self._instances[name] = list(make(section))
            pending.pop()
        return self._instances[name]

    def _gather(self, section: Section) -> Iterator[Node]:
        """Make the node of a stage that reads every node with named inputs."""
        nodes = {
            name: node
            for name, node in self.graph.nodes.items()
            if not self.graph.sections[node.section].stage.reads_all_nodes
        }
        placements = {}
        # the stage needs the position of each node
        if GATHERED in section.stage.config.model_fields:
            placements[GATHERED] = {name: _placement(node) for name, node in nodes.items()}
        new_node = self.graph.add_node(
            section,
            {**section.fields, **placements},
            {},
            {name: InputSource(node=name) for name in nodes},
        )
        assert new_node is not None  # the section names no files
        yield new_node

    def _keep_milestones(self) -> None:
        """Add the checkpoints that other nodes read to the milestones of their trainings."""
        nodes = self.graph.nodes
        for node in list(nodes.values()):
            for origin in node.inputs.values():
                if origin.node is not None and parse_step(origin.path) >= 0:
                    producer = nodes[origin.node]
                    config = _with_milestone(producer.config, parse_step(origin.path))
                    nodes[producer.name] = replace(producer, config=config)


def _placement(node: Node) -> dict[str, Any]:
    """Return a node's section, its matrix values, and the nodes that it reads by role."""
    inputs = {
        role: f"{source.node}/{source.path}" if source.path else source.node
        for role, source in node.inputs.items()
        if source.node is not None
    }
    return {"section": node.section, "values": dict(node.values), "inputs": inputs}


def _with_milestone(config: StageConfig, step: int) -> StageConfig:
    if MILESTONES not in type(config).model_fields:
        return config
    steps = tuple(sorted({*getattr(config, MILESTONES), step}))
    return config.model_copy(update={MILESTONES: steps})
