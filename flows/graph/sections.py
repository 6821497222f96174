"""From a config's sections to the nodes of its graph: who takes over what, which inputs are whose, and one instance a combination.

A key of a section is a field of its stage's config, a role of the stage's inputs (a list, where the role takes several), or one of
    matrix    the axes that it is an instance a combination of
    run       how these nodes are run, over what the run says
    when      always; there: a node whose files are not there is left out, with what needs it, and the plan says so; never: none is made
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
from pipeline.core.roles import role_of, spread
from pipeline.core.stage import Stage

MATRIX, RUN, WHEN = "matrix", "run", "when"
ALWAYS, THERE, NEVER = "always", "there", "never"
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
        self.when = said_when(name, values)
        self.roles = {key: value for key, value in values.items() if key in self.stage.inputs}
        self.fields = {key: value for key, value in values.items() if key not in (MATRIX, RUN, WHEN, *self.roles)}
        if self.stage.gathers and self.matrix:
            raise UsageError(f"{name}.matrix: stage {stage} gathers all nodes, so it has no instances; leave matrix out")


class _LeftOut(Exception):
    """What a node needs is left out."""


class Graph:
    """Makes the nodes of all sections, in an order in which every node comes after what it needs.

    Attributes:
        nodes: by name.
        left_out: nodes that are not made, by name: why.
    """

    def __init__(self, sections: Mapping[str, Mapping[str, Any]], run: Mapping[str, Any], tokenizer: str | None) -> None:
        """Args:
        sections: in the file's order; none of them is left out any more.
        tokenizer: a ready vocabulary, instead of a node of the stage vocab.
        """
        whole = {name: _taken_over(sections, name) for name in sections}
        self._never = {name for name, said in whole.items() if said_when(name, said) == NEVER}
        self.sections = {name: Section(name, said, run) for name, said in whole.items() if name not in self._never}
        self.tokenizer = tokenizer
        self.nodes: dict[str, Node] = {}
        self.left_out: dict[str, str] = {}
        self._instances: dict[str, list[Node]] = {}
        self._lacking: list[Node] = []  # those that are left out for files that are not there
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
        made = self._node(section, {**section.fields, **told}, {}, {name: Origin(node=name) for name in found})
        assert made is not None  # it names no files
        yield made

    def _made(self, section: Section) -> Iterator[Node]:
        for own, below in combinations(section.matrix, section.name):
            spoken: set[str] = set()
            given = {**section.fields, **below}
            roles = {role: given.pop(role) for role in list(given) if role in section.stage.inputs}
            texts = {**section.roles, **roles}
            for role, wanted in section.stage.inputs.items():
                if role not in texts and not wanted.named:
                    texts[role] = None
            texts = dict(_spread(section, texts))
            fields = section.stage.config.model_fields
            for axes, inputs in self._there(section, texts, own, spoken):
                values = dict(replaced(given, axes, spoken.add))
                for axis in plain_axes(section.matrix) & own.keys():
                    if axis in fields:
                        values[axis] = own[axis]
                    elif axis not in spoken:
                        raise UsageError(
                            f"{section.name}.matrix.{axis} is no field of {section.stage_name}, and nothing there says {{{axis}}};"
                            f" {did_you_mean(axis, fields)}"
                        )
                made = self._node(section, {**self._lent(section, inputs), **values}, axes, inputs)
                if made is not None:
                    yield made

    def _there(
        self, section: Section, texts: Mapping[str, Any], axes: Mapping[str, Any], spoken: set[str]
    ) -> Iterator[tuple[dict[str, Any], dict[str, Origin]]]:
        """`_chosen`, of what has its inputs."""
        try:
            yield from self._chosen(section, texts, axes, {}, spoken)
        except _LeftOut as error:
            if str(error):  # else by the config's own word
                self.left_out[_name(section, axes)] = str(error)

    def _lent(self, section: Section, inputs: Mapping[str, Origin]) -> dict[str, Any]:
        """What the nodes that serve as inputs say of fields, see `Input.lends`."""
        return {
            field: getattr(self.nodes[origin.node].config, field)
            for role, origin in inputs.items()
            if origin.node is not None
            for field in section.stage.inputs[role_of(role)].lends
            if field in type(self.nodes[origin.node].config).model_fields
        }

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
            for other in self._lacking:
                same = all(axes.get(axis, value) == value for axis, value in other.values.items())
                if of is not None and other.section == self.nodes[of].section and same:
                    raise _LeftOut(f"needs {other.name}, which is left out")
            if section.when == THERE:
                wanted = ", ".join(f"{axis} {axes[axis]}" for axis in found[0][0] if axis in axes)
                raise _LeftOut(f"no instance of {self.nodes[of].section if of else of} has {wanted}")
            raise UsageError(
                f"no instance of {of} has the values {dict(axes)} of {section.name}'s matrix; name its axes otherwise"
            )

    def _candidates(self, section: Section, role: str, text: Any) -> Iterator[tuple[Mapping[str, Any], Origin]]:
        """What may serve as an input: its place in the matrices, and where it comes from; none for an optional one that is not there."""
        wanted = section.stage.inputs[role_of(role)]
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
            for node in self._some(source):
                yield node.values, Origin(node=node.name)
            return
        reference = str(text)
        name, _, part = reference.partition("/")
        if name in self._never and section.when == THERE:
            raise _LeftOut
        if name in self.sections:
            for node in self._some(name):
                yield node.values, self._checked(section, role, Origin(node=node.name, path=kept_part(part, reference)))
            return
        instance = self._instance(name)
        if instance is not None:
            yield {}, self._checked(section, role, Origin(node=instance.name, path=kept_part(part, reference)))
            return
        if name in self.left_out:
            raise _LeftOut(f"needs {name}, which is left out")
        if "/" not in reference:
            known = {*self.sections, *self.nodes}
            raise UsageError(f"{section.name}.{role} ({reference!r}) is no node of this run; {did_you_mean(reference, known)}")
        yield {}, Origin(path=reference)

    def _some(self, name: str) -> list[Node]:
        """The nodes of a section, at least one."""
        found = self.instances(name)
        if not found:
            raise _LeftOut(f"needs {name}, which is left out")
        return found

    def _instance(self, name: str) -> Node | None:
        """The node of that name, made first if need be."""
        stage = name.partition("@")[0]
        for section in self.sections.values():
            if section.stage_name == stage and section.name not in self._making:
                self.instances(section.name)
        return self.nodes.get(name)

    def _checked(self, section: Section, role: str, origin: Origin) -> Origin:
        """Raises UsageError where the node makes nothing that serves."""
        wanted, node = section.stage.inputs[role_of(role)], self.nodes[str(origin.node)]
        kinds = (*wanted.kinds, *wanted.also)
        if wanted.kinds and node.stage not in kinds:
            raise UsageError(f"{section.name}.{role} ({node.name}) is a {node.stage} node; it takes one of {', '.join(kinds)}")
        return origin

    def _nearest(self, name: str, kinds: tuple[str, ...]) -> str | None:
        """The nearest section before `name` that makes what is wanted; where there is none, the first one after it."""
        order = list(self.sections)
        place = order.index(name)
        before = [other for other in reversed(order[:place]) if self.sections[other].stage_name in kinds]
        after = [other for other in order[place + 1 :] if self.sections[other].stage_name in kinds]
        return next(iter([*before, *after]), None)

    def _node(
        self, section: Section, values: Mapping[str, Any], axes: Mapping[str, Any], inputs: Mapping[str, Origin]
    ) -> Node | None:
        """None: it is left out."""
        name = _name(section, axes)
        if name in self.nodes:
            raise UsageError(f"two nodes would be called {name}; give one of the sections another label")
        config = parse_config(section.stage.config, values, name)
        config.check_inputs(inputs)
        node = Node(
            name=name,
            stage=section.stage_name,
            section=section.name,
            values=dict(axes),
            config=config,
            execution=parse_config(Execution, section.run, f"{section.name}.{RUN}" if section.run else RUN),
            inputs=dict(inputs),
        )
        if section.when == THERE and (reason := config.missing()):
            self.left_out[name] = reason
            self._lacking.append(node)
            return None
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


def _spread(section: Section, texts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is named for each role, that of a role which takes several by key: `dataset/wiki` of a list with `dataset@wiki` in it.

    Raises:
        UsageError: a role that takes one is given a list.
    """
    for role, text in texts.items():
        if not isinstance(text, (list, tuple)):
            yield role, text
        elif not section.stage.inputs[role].several:
            raise UsageError(f"{section.name}.{role} ({list(text)!r}) takes one node or path, not a list; name one")
        else:
            yield from spread(role, [str(one) for one in text], _usual_name).items()


def _usual_name(reference: str) -> str:
    """Of one among several inputs: the label of a node, else its name; the last part of a path."""
    name, _, part = reference.partition("/")
    if part and stage_of(name) is None:
        return reference.rstrip("/").rpartition("/")[2]
    return name.partition("@")[2] or name


def said_when(name: str, values: Mapping[str, Any]) -> str:
    """What a section says under `when`.

    Raises:
        UsageError: it is none of the three words.
    """
    said = values.get(WHEN, ALWAYS)
    if said not in (ALWAYS, THERE, NEVER):
        raise UsageError(f"{name}.{WHEN} ({said!r}) must be {ALWAYS}, {THERE} or {NEVER}")
    return str(said)


def _name(section: Section, axes: Mapping[str, Any]) -> str:
    """Of the node in that place of the matrices."""
    words = [word(value, f"{section.name}.matrix.{axis}") for axis, value in axes.items()]
    label = "-".join([*([section.label] if section.label else []), *words])
    return f"{section.stage_name}@{label}" if label else section.stage_name


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
