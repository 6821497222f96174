"""Sections of a run's config, the graph while it is built, and the lookup of inputs.

A key of a section is a field of the stage's config, an input role (a list, or a pattern such as
`finetune@sst2-*`, if the role takes several), or one of:

    matrix    axes; each combination of their values makes an instance
    run       execution settings of these nodes, over those of the run. Where they run may stand
              beside it: launcher, resources, slurm_options, …
    when      always; available: leave out a node whose files do not exist, with the nodes that
              depend on it, and show that in the plan; never: build no node of the section

`stage@label` inherits the keys of the section `stage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from cloze.core.config import parse_config
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.humanize import an
from cloze.core.plugins import with_substitutes
from cloze.core.stages.execution import LAUNCHER_FIELDS, Execution, without_other_launchers
from cloze.core.stages.stage import BELOW, Stage, assign_input_keys, role_of
from cloze.flows.graph import stages
from cloze.flows.graph.nodes import InputSource, Node, resolve_subpath, stage_of
from cloze.flows.graph.overrides import merge, slug

LONGEST_NAME = 200  # bytes; names of records and artifacts, of at most 255, contain it
MATRIX, RUN, WHEN = "matrix", "run", "when"
ALWAYS, AVAILABLE, NEVER = "always", "available", "never"


def mapping_at(values: Mapping[str, Any], key: str, above: str) -> Mapping[str, Any]:
    """Return the mapping below a key; none is an empty one. `above` names what holds the key."""
    found = values.get(key)
    if isinstance(found, Mapping | None):
        return found or {}
    raise UsageError(f"{above}{key} ({found!r}) must be a mapping of keys to values")


# settings of `run` that a section may name by themselves: where its nodes run
PLACE = ("launcher", "resources", *LAUNCHER_FIELDS)


def fold_place(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the section with its launcher, resources and launcher's options below `run`.

    Raises UsageError: one of them is there, too.
    """
    place = {key: value for key, value in section.items() if key in PLACE}
    if not place:
        return dict(section)
    run = mapping_at(section, RUN, f"{name}.")
    if twice := next((key for key in place if key in run), None):
        raise UsageError(f"{name}.{twice} and {name}.{RUN}.{twice} are the same; leave one out")
    return {key: value for key, value in section.items() if key not in PLACE} | {
        RUN: {**run, **place}
    }


class Section:
    """One section: its stage, and its keys sorted into matrix, run, when, roles and fields."""

    def __init__(self, name: str, values: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        self.name, stage = name, stage_of(name)
        assert stage is not None
        self.stage_name, self.label = stage, name.partition("@")[2]
        self.stage: Stage = stages.stage(stage)
        self.matrix = values.get(MATRIX)
        run_values = mapping_at(values, RUN, f"{name}.")
        inherited = without_other_launchers(run, run_values.get("launcher"))
        self.run = merge(inherited, run_values, None, f"{name}.{RUN}")
        self.when = parse_when(name, values)
        self.roles = {key: value for key, value in values.items() if key in self.stage.inputs}
        self.fields = {
            key: value
            for key, value in values.items()
            if key not in (MATRIX, RUN, WHEN, *self.roles)
        }
        if self.stage.reads_all_nodes and self.matrix:
            raise UsageError(
                f"{name}.matrix: stage {stage} gathers all nodes, so it has no instances; leave "
                f"matrix out"
            )


class LeftOutError(Exception):
    """A node is left out because of its input. Without a message, the config itself excludes it."""


# matrix values of the source node, and the input's source
Candidate = tuple[Mapping[str, Any], InputSource]


@dataclass(slots=True, kw_only=True)
class PartialGraph:
    """Graph while it is built, and the look-up of the candidates for each input of a section."""

    sections: Mapping[str, Section]  # sections that make nodes, in the file's order
    never: frozenset[str]  # names of the sections with `when: never`
    tokenizer: str | None  # path of an existing vocabulary, which replaces the vocab node
    nodes: dict[str, Node] = field(default_factory=dict)  # finished nodes by name
    # reasons by name, for nodes that are not built
    left_out: dict[str, str] = field(default_factory=dict)
    # nodes that are left out because files are missing
    lacking: list[Node] = field(default_factory=list)
    # sections in progress, newest last, to detect cycles
    pending: list[str] = field(default_factory=list)

    def add_node(
        self,
        section: Section,
        values: Mapping[str, Any],
        axes: Mapping[str, Any],
        inputs: Mapping[str, InputSource],
    ) -> Node | None:
        """Make a node of a section and add it to the graph; None: the node is left out."""
        name = node_name(section, axes)
        if name in self.nodes:
            raise UsageError(
                f"two nodes would be called {name}; give one of the sections another label"
            )
        config = parse_config(section.stage.config, values, name)
        config.check_inputs(inputs)
        node = Node(
            name=name,
            stage=section.stage_name,
            section=section.name,
            values=dict(axes),
            config=config,
            execution=parse_config(
                Execution, section.run, f"{section.name}.{RUN}" if section.run else RUN
            ),
            inputs=dict(inputs),
        )
        if section.when == AVAILABLE and (reason := config.missing()):
            self.left_out[name] = reason
            self.lacking.append(node)
            return None
        self.nodes[name] = node
        return node

    def instances(self, name: str) -> list[Node]:
        """Return the nodes of a section, and make them first if necessary."""
        raise NotImplementedError

    def candidates(self, section: Section, role: str, text: Any) -> Iterator[Candidate]:
        """Yield the candidates for an input; nothing for an absent optional input.

        `text`: reference from the config: a node, a path or a boolean; None: choose by kind.

        Raises:
            LeftOutError: the referenced node is left out.
            UsageError: the reference does not fit the role, or no candidate exists.
        """
        spec = section.stage.inputs[role_of(role)]
        if text is False:
            if spec.required:
                raise UsageError(
                    f"{section.name}.{role} (false) cannot be left out; name a node or an "
                    f"artifact's path"
                )
            return
        if text is None or text is True:
            if "vocab" in spec.kinds and self.tokenizer is not None:
                yield {}, InputSource(path=self.tokenizer)
                return
            kinds = with_substitutes(spec.kinds, section.stage_name)
            source = self._nearest(section.name, kinds)
            if source is None:
                if spec.required or text is True:
                    needed = " or ".join(spec.kinds) or role
                    raise UsageError(
                        f"stage {section.stage_name} needs stage {needed}, which the config lacks; "
                        f"add a section {needed}:,"
                        f" or name its artifact: {section.name}: {{{role}: PATH}}"
                    )
                return
            for node in self._some(source):
                yield node.values, InputSource(node=node.name)
            return
        reference = str(text)
        name, _, subpath = reference.partition("/")
        if name in self.never and section.when == AVAILABLE:
            raise LeftOutError
        if name in self.sections:
            for node in self._some(name):
                yield node.values, self._source(section, role, node, subpath, reference)
            return
        instance = self._instance(name)
        if instance is not None:
            yield {}, self._source(section, role, instance, subpath, reference)
            return
        if name in self.left_out:
            raise LeftOutError(f"needs {name}, which is left out")
        if "/" not in reference:
            known = {*self.sections, *self.nodes}
            raise UsageError(
                f"{section.name}.{role} ({reference!r}) is no node of this run; "
                f"{did_you_mean(reference, known)}"
            )
        yield {}, InputSource(path=reference)

    def matches(self, section: Section, role: str, reference: Any) -> dict[str, str]:
        """Return the nodes that match a pattern, by input key; nothing if it is no pattern.

        Raises:
            LeftOutError: all matching nodes are left out.
            UsageError: no node matches.
        """
        pattern, stem = str(reference), role_of(role)
        if "*" not in pattern or "/" in pattern or not section.stage.inputs[stem].multiple:
            return {}
        self._instance(pattern)
        names = [name for name in self.nodes if fnmatchcase(name, pattern)]
        if not names:
            if any(fnmatchcase(name, pattern) for name in self.left_out):
                raise LeftOutError(f"needs {pattern}, which is left out")
            raise UsageError(
                f"{section.name}.{role} ({pattern!r}) matches no node of this run; "
                f"{did_you_mean(pattern, self.nodes)}"
            )
        if role != stem:  # one of a list
            return {f"{stem}{BELOW}{_usual_name(name)}": name for name in names}
        return assign_input_keys(stem, names, _usual_name)

    def _some(self, name: str) -> list[Node]:
        """Return the nodes of a section; raise LeftOutError if there is none."""
        nodes = self.instances(name)
        if not nodes:
            raise LeftOutError(f"needs {name}, which is left out")
        return nodes

    def _instance(self, name: str) -> Node | None:
        """Make the nodes of the name's stage, and return the node of that name, or None."""
        stage = name.partition("@")[0]
        for section in self.sections.values():
            if fnmatchcase(section.stage_name, stage) and section.name not in self.pending:
                self.instances(section.name)
        return self.nodes.get(name)

    def _source(
        self, section: Section, role: str, node: Node, subpath: str, reference: str
    ) -> InputSource:
        """Return the source in a node; raise UsageError if its stage does not fit the role."""
        spec, path = section.stage.inputs[role_of(role)], resolve_subpath(subpath, reference)
        named = (*spec.kinds, *spec.explicit_kinds)
        kinds = with_substitutes(named, section.stage_name, role_of(role))
        if spec.kinds and node.stage not in kinds:
            raise UsageError(
                f"{section.name}.{role} ({node.name}) is {an(node.stage)} node; it takes one of "
                f"{', '.join(kinds)}"
            )
        return InputSource(node=node.name, path=path)

    def _nearest(self, name: str, kinds: tuple[str, ...]) -> str | None:
        """Return the nearest earlier section that makes one of `kinds`, else the next later one."""
        order = list(self.sections)
        position = order.index(name)
        candidates = [*reversed(order[:position]), *order[position + 1 :]]
        sections = self.sections
        return next((other for other in candidates if sections[other].stage_name in kinds), None)


def parse_when(name: str, values: Mapping[str, Any]) -> str:
    """Return the `when` of a section.

    Raises UsageError: the value is none of the three words.
    """
    value = values.get(WHEN, ALWAYS)
    if value not in (ALWAYS, AVAILABLE, NEVER):
        raise UsageError(f"{name}.{WHEN} ({value!r}) must be {ALWAYS}, {AVAILABLE} or {NEVER}")
    return str(value)


def node_name(section: Section, axes: Mapping[str, Any]) -> str:
    """Return the name of a section's node with these values of the axes."""
    slugs = [slug(value, f"{section.name}.matrix.{axis}") for axis, value in axes.items()]
    label = "-".join([*([section.label] if section.label else []), *slugs])
    name = f"{section.stage_name}@{label}" if label else section.stage_name
    if len(name) > LONGEST_NAME:
        raise UsageError(f"node {name} has a name of {len(name)} letters, at most {LONGEST_NAME}")
    return name


def inherit(sections: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return the keys of a section merged over those of the section without the label.

    A matrix is inherited whole or not at all.
    """
    stage = str(stage_of(name))
    values, base = dict(sections[name]), sections.get(stage, {})
    if name == stage:
        return values
    matrix = {MATRIX: values.pop(MATRIX)} if MATRIX in values else {}
    return {**merge(base, values, stages.stage(stage).config, name), **matrix}


def spread_roles(section: Section, texts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (role, reference) pairs; a role with several inputs yields one key for each.

    `dataset: [dataset@wiki]` becomes the key `dataset/wiki`.

    Raises UsageError: a list is given for a role that takes one input.
    """
    for role, text in texts.items():
        if not isinstance(text, (list, tuple)):
            yield role, text
        elif not section.stage.inputs[role].multiple:
            raise UsageError(
                f"{section.name}.{role} ({list(text)!r}) takes one node or path, not a list; name "
                f"one"
            )
        else:
            yield from assign_input_keys(
                role, [str(reference) for reference in text], _usual_name
            ).items()


def _usual_name(reference: str) -> str:
    """Return the default name of one of several inputs: a node's label or a path's last part."""
    name, _, subpath = reference.partition("/")
    if subpath and stage_of(name) is None:
        return reference.rstrip("/").rpartition("/")[2]
    return name.partition("@")[2] or name
