"""Nodes of a graph: one for each combination of a section's matrix and of its inputs' instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cloze.core.artifacts.checkpoints import parse_step
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.stages.stage import role_of
from cloze.flows.graph.nodes import InputSource, Node
from cloze.flows.graph.overrides import combinations, merge, plain_axes, substitute_axes
from cloze.flows.graph.sections import (
    AVAILABLE,
    NEVER,
    Candidate,
    LeftOutError,
    PartialGraph,
    Section,
    inherit,
    node_name,
    parse_when,
    spread_roles,
)

GATHERED = "nodes"  # config field of stages that read all nodes
MILESTONES = "milestones"  # config field with the steps whose checkpoints are never deleted


class GraphBuilder(PartialGraph):
    """Graph builder: first sections with named inputs, then those that read all nodes."""

    def __init__(
        self,
        sections: Mapping[str, Mapping[str, Any]],
        run: Mapping[str, Any],
        tokenizer: str | None,
    ) -> None:
        """Build the graph.

        `sections`: values of the sections, in the file's order.
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
        super().__init__(sections=active, never=never, tokenizer=tokenizer)
        self._instances: dict[str, list[Node]] = {}
        for reads_all in (False, True):
            for name, section in active.items():
                if section.stage.reads_all_nodes == reads_all:
                    self.instances(name)
        # The checkpoints that other nodes read are milestones of their trainings.
        for node in list(self.nodes.values()):
            for origin in node.inputs.values():
                if origin.node is not None and (step := parse_step(origin.path)) >= 0:
                    config = self.nodes[origin.node].config
                    if MILESTONES in type(config).model_fields:
                        steps = tuple(sorted({*getattr(config, MILESTONES), step}))
                        config = config.model_copy(update={MILESTONES: steps})
                        kept = replace(self.nodes[origin.node], config=config)
                        self.nodes[origin.node] = kept

    def instances(self, name: str) -> list[Node]:
        """Return the nodes of a section, and make them first if necessary.

        Raises UsageError: the nodes depend on each other in a cycle.
        """
        pending = self.pending
        if name in pending:
            cycle = " -> ".join([*pending[pending.index(name) :], name])
            raise UsageError(
                f"the nodes need each other in a circle ({cycle}); name another input for one of "
                f"them"
            )
        if name not in self._instances:
            pending.append(name)
            section = self.sections[name]
            make = self._gather if section.stage.reads_all_nodes else self._expand
            self._instances[name] = [node for node in make(section) if node is not None]
            pending.pop()
        return self._instances[name]

    def _expand(self, section: Section) -> Iterator[Node | None]:
        """Make the nodes of a section with named inputs; None: a node is left out."""
        stage, fields = section.stage, section.stage.config.model_fields
        for combination, points in combinations(section.matrix, section.name):
            settings = dict(section.fields)
            for point in points:
                settings = merge(settings, point, stage.config, section.name)
            for point in points:  # alternatives, such as steps and tokens, are refused together
                settings = {**point, **settings}
            roles = {role: settings.pop(role) for role in list(settings) if role in stage.inputs}
            references = {**section.roles, **roles}
            for role, spec in stage.inputs.items():
                if not spec.explicit_only:
                    references.setdefault(role, None)
            references = dict(spread_roles(section, references))
            plain = plain_axes(section.matrix) & combination.keys()
            for axes, inputs in self._choices(section, references, combination):
                for axis in sorted(plain - fields.keys()):
                    if f"{{{axis}}}" not in f"{settings} {references}":
                        raise UsageError(
                            f"{section.name}.matrix.{axis} is no field of {section.stage_name}, "
                            f"and nothing there says {{{axis}}}; {did_you_mean(axis, fields)}"
                        )
                lent = {  # see `InputSpec.inherited_fields`
                    field: getattr(config, field)
                    for role, origin in inputs.items()
                    if origin.node is not None
                    for config in [self.nodes[origin.node].config]
                    for field in stage.inputs[role_of(role)].inherited_fields
                    if field in type(config).model_fields
                }
                values = {
                    **lent,
                    **substitute_axes(settings, axes),
                    **{axis: combination[axis] for axis in plain if axis in fields},
                }
                yield self.add_node(section, values, axes, inputs)

    def _choices(
        self, section: Section, references: Mapping[str, Any], combination: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], dict[str, InputSource]]]:
        """Yield matrix values and inputs of each node: the natural join of the inputs' instances.

        If an input is left out, the rest of the nodes are recorded as left out.

        Args:
            references: references by role; None: the config names none.
            combination: values of the section's own axes.
        """
        # roles that have no input yet, matrix values and inputs; the last one is continued first
        partial: list[tuple[dict[str, Any], dict[str, Any], dict[str, InputSource]]]
        partial = [(dict(references), dict(combination), {})]
        try:
            while partial:
                texts, axes, inputs = partial.pop()
                if not texts:
                    yield axes, inputs
                    continue
                role = _next_role(section, texts, axes)
                reference = substitute_axes(texts.pop(role), axes)
                if matches := self.matches(section, role, reference):
                    partial.append(({**texts, **matches}, axes, inputs))
                    continue
                candidates = list(self.candidates(section, role, reference))
                joined = [
                    (dict(texts), {**axes, **values}, {**inputs, role: origin})
                    for values, origin in candidates
                    if all(axes.get(axis, value) == value for axis, value in values.items())
                ]
                if candidates and not joined and not inputs:
                    raise self._no_match(section, axes, candidates[0])
                partial += reversed(joined) if candidates else [(texts, axes, inputs)]
        except LeftOutError as error:
            if str(error):  # without a message, the config itself excludes the node
                self.left_out[node_name(section, combination)] = str(error)

    def _no_match(
        self, section: Section, axes: Mapping[str, Any], candidate: Candidate
    ) -> Exception:
        """Return the error of a node whose matrix values no instance of an input has.

        `axes`: matrix values of the node; `candidate`: one of the instances.
        """
        values, source = candidate[0], candidate[1].node
        source_section = self.nodes[source].section if source else source
        for other in self.lacking:
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

    def _gather(self, section: Section) -> Iterator[Node | None]:
        """Make the node of a stage that reads every node with named inputs."""
        nodes = {
            name: node
            for name, node in self.nodes.items()
            if not self.sections[node.section].stage.reads_all_nodes
        }
        values = dict(section.fields)
        if GATHERED in section.stage.config.model_fields:
            values[GATHERED] = {name: node.placement for name, node in nodes.items()}
        inputs = {name: InputSource(node=name) for name in nodes}
        yield self.add_node(section, values, {}, inputs)


def _next_role(section: Section, texts: Mapping[str, Any], axes: Mapping[str, Any]) -> str:
    """Return a role whose reference is complete; another one provides the axes of the rest."""
    for role, text in texts.items():
        if "{" not in str(substitute_axes(text, axes)):
            return role
    role, text = next(iter(texts.items()))
    raise UsageError(
        f"{section.name}.{role} ({text!r}) refers to an axis that this node lacks;"
        f" use {set(axes) or '{}'}"
    )
