"""From a config's sections to the nodes of its graph: who takes over what, which inputs are whose, and one instance a combination.

A key of a section is a field of its stage's config, a role of the stage's inputs, or one of
    matrix    the axes that it is an instance a combination of
    run       how these nodes are run, over what the run says
`stage@label` takes over what the section `stage` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from flows.graph import stages
from flows.graph.matrix import combinations, plain_axes, replaced, word
from flows.graph.nodes import Node, Origin, kept_part, stage_of
from flows.graph.overrides import merge
from pipeline.core.checkpoints import step_of
from pipeline.core.config import StageConfig, parse_config
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.execution import Execution
from pipeline.core.stage import Stage

MATRIX, RUN = "matrix", "run"
GATHERED = "nodes"  # the field of a stage that gathers
MILESTONES = "milestones"  # the field that keeps checkpoints which other nodes go on from


class Section:
    """One section: its stage, and its keys by what they are."""

    def __init__(self, name: str, values: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        self.name, stage = name, stage_of(name)
        assert stage is not None
        self.stage_name, self.label = stage, name.partition("@")[2]
        self.stage: Stage = stages.stage(stage)
        self.matrix = values.get(MATRIX)
        own = values.get(RUN) or {}
        if not isinstance(own, Mapping):
            raise UsageError(f"{name}.{RUN} ({own!r}) must be a mapping of keys to values, such as {{processes: 2}}")
        self.run = merge(run, own, None, f"{name}.{RUN}")
        self.roles = {key: value for key, value in values.items() if key in self.stage.inputs}
        self.fields = {key: value for key, value in values.items() if key not in (MATRIX, RUN, *self.roles)}
        if self.stage.gathers and self.matrix:
            raise UsageError(f"{name}.matrix: stage {stage} gathers all nodes, so it has no instances; leave matrix out")


class Graph:
    """Makes the nodes of all sections, in an order in which every node comes after what it needs."""

    def __init__(self, sections: Mapping[str, Mapping[str, Any]], run: Mapping[str, Any], tokenizer: str | None) -> None:
        """Args:
        sections: in the file's order; none of them is left out any more.
        tokenizer: a ready vocabulary, instead of a node of the stage vocab.
        """
        self.sections = {name: Section(name, _taken_over(sections, name), run) for name in sections}
        self.tokenizer = tokenizer
        self.nodes: dict[str, Node] = {}
        self._instances: dict[str, list[Node]] = {}
        self._making: list[str] = []  # from which the present one was asked for: to notice a circle
        gathering = [name for name, section in self.sections.items() if section.stage.gathers]
        for name in (*(name for name in self.sections if name not in gathering), *gathering):
            self.instances(name)
        self._keep_milestones()

    def instances(self, name: str) -> list[Node]:
        """The nodes of a section."""
        if name in self._making:
            circle = " -> ".join([*self._making[self._making.index(name) :], name])
            raise UsageError(f"the nodes need each other in a circle ({circle}); name another input for one of them")
        if name not in self._instances:
            self._making.append(name)
            section = self.sections[name]
            self._instances[name] = list(self._gathering(section) if section.stage.gathers else self._made(section))
            self._making.pop()
        return self._instances[name]

    def _gathering(self, section: Section) -> Iterator[Node]:
        found = {name: node for name, node in self.nodes.items() if not self.sections[node.section].stage.gathers}
        told = {}
        if GATHERED in section.stage.config.model_fields:  # it wants to know where in the graph each stands
            told[GATHERED] = {name: _place(node) for name, node in found.items()}
        yield self._node(section, {**section.fields, **told}, {}, {name: Origin(node=name) for name in found})

    def _made(self, section: Section) -> Iterator[Node]:
        for own, below in combinations(section.matrix, section.name):
            spoken: set[str] = set()
            given = {**section.fields, **below}
            roles = {role: given.pop(role) for role in list(given) if role in section.stage.inputs}
            texts = {**section.roles, **roles}
            for role, wanted in section.stage.inputs.items():
                if role not in texts and not wanted.named:
                    texts[role] = None
            fields = section.stage.config.model_fields
            for axes, inputs in self._chosen(section, texts, own, {}, spoken):
                values = dict(replaced(given, axes, spoken.add))
                for axis in plain_axes(section.matrix) & own.keys():
                    if axis in fields:
                        values[axis] = own[axis]
                    elif axis not in spoken:
                        raise UsageError(
                            f"{section.name}.matrix.{axis} is no field of {section.stage_name}, and nothing there says {{{axis}}};"
                            f" {did_you_mean(axis, fields)}"
                        )
                yield self._node(section, values, axes, inputs)

    def _chosen(
        self,
        section: Section,
        texts: Mapping[str, Any],
        axes: Mapping[str, Any],
        chosen: Mapping[str, Origin],
        spoken: set[str],
    ) -> Iterator[tuple[dict[str, Any], dict[str, Origin]]]:
        """All ways to choose an instance for each role whose axes fit together: the axes of all, and the inputs.

        Args:
            texts: role -> what the config names for it; None: it names nothing.
        """
        if not texts:
            yield dict(axes), dict(chosen)
            return
        # a role that speaks of an axis waits for the role that brings it
        role = next((role for role, text in texts.items() if "{" not in str(replaced(text, axes))), None)
        if role is None:
            role = next(iter(texts))
            raise UsageError(
                f"{section.name}.{role} ({texts[role]!r}) speaks of an axis that this node has not; use {set(axes) or '{}'}"
            )
        rest = {other: text for other, text in texts.items() if other != role}
        found = list(self._candidates(section, role, replaced(texts[role], axes, spoken.add)))
        if not found:
            yield from self._chosen(section, rest, axes, chosen, spoken)
            return
        fitting = 0
        for values, origin in found:
            if all(axes.get(axis, value) == value for axis, value in values.items()):
                fitting += 1
                yield from self._chosen(section, rest, {**axes, **values}, {**chosen, role: origin}, spoken)
        if not fitting and not chosen:
            of = found[0][1].node
            raise UsageError(
                f"no instance of {of} has the values {dict(axes)} of {section.name}'s matrix; name its axes otherwise"
            )

    def _candidates(self, section: Section, role: str, text: Any) -> Iterator[tuple[Mapping[str, Any], Origin]]:
        """What may serve as an input: its place in the matrices, and where it comes from; none for an optional one that is not there."""
        wanted = section.stage.inputs[role]
        if text is False:
            if wanted.required:
                raise UsageError(f"{section.name}.{role} (false) cannot be left out; name a node or an artifact's path")
            return
        if text is None or text is True:
            if "vocab" in wanted.kinds and self.tokenizer is not None:
                yield {}, Origin(path=self.tokenizer)
                return
            source = self._nearest(section.name, wanted.kinds)
            if source is None:
                if wanted.required or text is True:
                    needed = " or ".join(wanted.kinds) or role
                    raise UsageError(
                        f"stage {section.stage_name} needs stage {needed}, which the config lacks; add a section {needed}:,"
                        f" or name its artifact: {section.name}: {{{role}: PATH}}"
                    )
                return
            for node in self.instances(source):
                yield node.values, Origin(node=node.name)
            return
        reference = str(text)
        name, _, part = reference.partition("/")
        if name in self.sections:
            for node in self.instances(name):
                yield node.values, self._checked(section, role, Origin(node=node.name, path=kept_part(part, reference)))
            return
        instance = self._instance(name)
        if instance is not None:
            yield {}, self._checked(section, role, Origin(node=instance.name, path=kept_part(part, reference)))
            return
        if "/" not in reference:
            known = {*self.sections, *self.nodes}
            raise UsageError(f"{section.name}.{role} ({reference!r}) is no node of this run; {did_you_mean(reference, known)}")
        yield {}, Origin(path=reference)

    def _instance(self, name: str) -> Node | None:
        """The node of that name, made first if need be."""
        stage = name.partition("@")[0]
        for section in self.sections.values():
            if section.stage_name == stage and section.name not in self._making:
                self.instances(section.name)
        return self.nodes.get(name)

    def _checked(self, section: Section, role: str, origin: Origin) -> Origin:
        """Raises UsageError where the node makes nothing that serves."""
        kinds, node = section.stage.inputs[role].kinds, self.nodes[str(origin.node)]
        if kinds and node.stage not in kinds:
            raise UsageError(f"{section.name}.{role} ({node.name}) is a {node.stage} node; it takes one of {', '.join(kinds)}")
        return origin

    def _nearest(self, name: str, kinds: tuple[str, ...]) -> str | None:
        """The nearest section before `name` that makes what is wanted; where there is none, the first one after it."""
        order = list(self.sections)
        place = order.index(name)
        before = [other for other in reversed(order[:place]) if self.sections[other].stage_name in kinds]
        after = [other for other in order[place + 1 :] if self.sections[other].stage_name in kinds]
        return next(iter([*before, *after]), None)

    def _node(self, section: Section, values: Mapping[str, Any], axes: Mapping[str, Any], inputs: Mapping[str, Origin]) -> Node:
        words = [word(value, f"{section.name}.matrix.{axis}") for axis, value in axes.items()]
        label = "-".join([*([section.label] if section.label else []), *words])
        name = f"{section.stage_name}@{label}" if label else section.stage_name
        if name in self.nodes:
            raise UsageError(f"two nodes would be called {name}; give one of the sections another label")
        node = Node(
            name=name,
            stage=section.stage_name,
            section=section.name,
            values=dict(axes),
            config=parse_config(section.stage.config, values, name),
            execution=parse_config(Execution, section.run, f"{section.name}.{RUN}" if section.run else RUN),
            inputs=dict(inputs),
        )
        self.nodes[name] = node
        return node

    def _keep_milestones(self) -> None:
        """A checkpoint that another node goes on from stays: its training is told to keep it."""
        for node in list(self.nodes.values()):
            for origin in node.inputs.values():
                if origin.node is not None and step_of(origin.path) >= 0:
                    maker = self.nodes[origin.node]
                    config = _with_milestone(maker.config, step_of(origin.path))
                    self.nodes[maker.name] = replace(maker, config=config)


def _place(node: Node) -> dict[str, Any]:
    """A node's section, its place in the matrices, and the nodes that it reads, by role."""
    inputs = {
        role: f"{one.node}/{one.path}" if one.path else one.node for role, one in node.inputs.items() if one.node is not None
    }
    return {"section": node.section, "values": dict(node.values), "inputs": inputs}


def _with_milestone(config: StageConfig, step: int) -> StageConfig:
    if MILESTONES not in type(config).model_fields:
        return config
    kept = tuple(sorted({*getattr(config, MILESTONES), step}))
    return config.model_copy(update={MILESTONES: kept})


def _taken_over(sections: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """What a section says, over what the one without its label says; a matrix is taken over whole or not at all."""
    stage = str(stage_of(name))
    own, base = dict(sections[name]), sections.get(stage, {})
    if name == stage:
        return own
    matrix = {MATRIX: own.pop(MATRIX)} if MATRIX in own else {}
    return {**merge(base, own, stages.stage(stage).config, name), **matrix}
