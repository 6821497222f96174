"""Write the reference of the YAML config, of the commands and of Python: `make recorded`.

`config_page` reads the config class of every stage and the docstrings of its fields;
`commands_page` reads the options of every command. Nothing of the two pages is written by hand.
They are kept in the repository, so that a link works without a build; a test compares them. As a
hook of mkdocs this file marks options in code.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cloze.core.options import field_docs
from cloze.core.plugins import installed
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Stage
from cloze.flows.cli import COMMANDS, verbs
from cloze.flows.cli import cloze as command_group
from cloze.flows.commands.base.options import placements
from cloze.flows.graph.stages import TABLE
from cloze.flows.nightly.suite import NightSettings

OPTION, MARKED = re.compile(r"(?<![\w-])--?\w[\w-]*"), r'<span class="option">\g<0></span>'
# A block that begins with a command is wrapped on a phone; a diagram and a table are not.
TYPED = re.compile(
    r'<div class="highlight">(?=<pre>(?:<[^>]*>)*'
    r"(?:cloze|curl|docker|git|kubectl|make|mlflow|openssl|pip|prefect|python|sudo|torchrun|uv) )"
)
LONGEST_NAME = 28  # characters in code that fit on a line of a phone
PLACE = re.compile(r"<!-- (cloze\.\w+) -->\n.*?<!-- end -->", re.DOTALL)
SECTION = re.compile(r"^(Args|Attributes|Examples|Raises|Returns|Yields):$", re.MULTILINE)
PIPED = re.compile(r"`([^`|]*\|[^`]*)`")
TITLES = {"Args": "Parameters"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def on_config(config: Any) -> Any:
    """Name the version in the foot of each page."""
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    assert version is not None
    config["copyright"] = f"Cloze {version[1]}, Apache License 2.0"
    return config


def on_page_content(html: str, **rest: Any) -> str:
    """Mark options and names in code, which no browser may break after a hyphen (site.css)."""
    html = re.sub(
        rf"<code>(\S{{1,{LONGEST_NAME}}})</code>", r'<code class="option">\1</code>', html
    )
    html = TYPED.sub('<div class="highlight typed">', html)
    return re.sub(r"<code>[^<]+</code>", lambda code: OPTION.sub(MARKED, code[0]), html)


def config_page() -> str:
    """Return the page of all YAML sections and fields."""
    lines = [
        "# YAML sections and fields",
        "",
        "For everyone who writes a config: each section, its inputs, and its fields. The page is",
        "generated from the program. A field is also an option of the command of its stage,",
        "unless the [commands](commands.md) page says otherwise.",
        "",
        "A section is named `STAGE` or `STAGE@LABEL`. `name` sets the name of the run, `tokenizer`",
        "a vocabulary that exists already, and `matrix` in a section the axes of its instances",
        "([A run of several nodes](../how-to/runs.md)).",
    ]
    for name, stage in TABLE.loaded().items():
        lines += ["", *_stage_section(name, stage)]
    lines += [
        *("", "## `run`", ""),
        "How nodes are executed: processes, devices, retries. No field of `run` changes a result",
        "or a fingerprint. A section may have a `run` of its own.",
        *("", *_fields_by_group("run", Execution)),
        *("", "## `night`", ""),
        "Settings of the nightly evaluation, in the config of `cloze nightly`.",
        *("", *_fields_by_group("night", NightSettings)),
    ]
    return "\n".join(lines) + "\n"


def _stage_section(name: str, stage: Stage) -> Iterator[str]:
    yield f"## `{name}`"
    yield ""
    yield f"Version {stage.version} of the stage."
    if stage.inputs:
        yield ""
        yield "| Input | Required | Artifacts it takes |"
        yield "|---|---|---|"
        for role, spec in stage.inputs.items():
            kinds = ", ".join(f"`{kind}`" for kind in (*spec.kinds, *spec.explicit_kinds))
            required = "yes" if spec.required else "no"
            yield f"| `{role}` | {required} | {kinds or 'a path'} |"
    if stage.config.model_fields:
        yield ""
        yield from _fields_by_group(name, stage.config)


def _fields_by_group(section: str, config: type[BaseModel]) -> Iterator[str]:
    """Yield one table per group of `--help`, then the tables of nested configs."""
    docs = field_docs(config)
    known = placements(section)
    groups: dict[str, list[str]] = {}
    for field in sorted(config.model_fields, key=lambda field: _rank(field, list(known))):
        group = known[field].group if field in known else "Other fields"
        groups.setdefault(group, []).append(field)
    for group, fields in groups.items():
        if len(groups) > 1:
            yield from (f"**{group}**", "")
        yield "| Field | Type | Default | Description |"
        yield "|---|---|---|---|"
        for field in fields:
            yield _row(field, config.model_fields[field], docs.get(field, ""))
        yield ""
    for nested in dict.fromkeys(_nested(config)):
        if nested.model_fields:
            yield from (f"**Fields of a `{nested.__name__}`**", "")
            yield "| Field | Type | Default | Description |"
            yield "|---|---|---|---|"
            texts = field_docs(nested)
            for field, info in nested.model_fields.items():
                yield _row(field, info, texts.get(field, ""))
            yield ""


def _rank(field: str, order: list[str]) -> int:
    return order.index(field) if field in order else len(order)


def _row(name: str, info: FieldInfo, text: str) -> str:
    bounds = [
        f"{sign} {getattr(mark, key)}"
        for mark in info.metadata
        for key, sign in BOUNDS.items()
        if getattr(mark, key, None) is not None
    ]
    kind = ", ".join([_type_name(info.annotation), *bounds])
    return f"| `{name}` | {_cell(kind)} | {_cell(_default(info))} | {_cell(text)} |"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=not info.default_factory_takes_validated_data)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_defaults=True)
    if value is None or value is PydanticUndefined or value in ("", (), {}, []):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _type_name(annotation: Any) -> str:
    """Return a type as a reader of YAML knows it: `text`, `list of number`, `cls | mean`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(a) for a in arguments if a is not type(None))
    if origin in (tuple, list, set, frozenset):
        return "list of " + (_type_name(arguments[0]) if arguments else "values")
    if origin is dict or annotation is dict or "Mapping" in str(origin):
        return "mapping"
    plain = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any"}
    return plain.get(annotation, f"`{getattr(annotation, '__name__', annotation)}`")


def _nested(config: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for info in config.model_fields.values():
        pending = [info.annotation]
        while pending:
            found = pending.pop()
            pending += get_args(found)
            if isinstance(found, type) and issubclass(found, BaseModel):
                yield found


def commands_page() -> str:
    """Return the page of all commands and their options."""
    lines = [
        "# Commands",
        "",
        "For everyone who types commands: all options of each command. The page is generated from",
        "the program; `cloze help COMMAND` prints the same, `cloze COMMAND --help` a short list.",
        "",
        "Exit codes: 0 done; 1 failed; 2 wrong usage or config; 3 bad input data; 4 stopped on",
        "request, with a checkpoint saved. `cloze --debug COMMAND` prints tracebacks.",
    ]
    root = click.Context(command_group, info_name="cloze")
    plugins = {f"{one.plugin.name}: {one.plugin.summary}": verbs(one) for one in installed()}
    for heading, rows in {**COMMANDS, **plugins}.items():
        lines += ["", f"## {heading}"]
        for name, summary in rows.items():
            command = command_group.get_command(root, name)
            if command is None:
                raise LookupError(f"command {name!r} is in the table, but does not exist")
            lines += ["", f"### `cloze {name}`", "", *_command_section(name, summary, command)]
    return "\n".join(lines) + "\n"


def _command_section(name: str, summary: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=f"cloze {name}")
    yield summary
    yield ""
    yield from ("```text", context.command.get_usage(context).removeprefix("Usage: "), "```")
    more = _paragraphs(command.help or "")[1:]
    for paragraph in more:
        yield from ("", paragraph)
    groups: dict[str, list[str]] = {}
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if isinstance(option, click.Option) and record:
            spelling, text = record
            row = f"| {_cell(f'`{spelling}`')} | {_cell(text)} |"
            groups.setdefault(getattr(option, "group", None) or "Options", []).append(row)
    for group, rows in groups.items():
        yield from ("", f"| {group} | |", "|---|---|", *rows)


def _paragraphs(text: str) -> list[str]:
    found = re.split(r"\n\s*\n", typing.cast(str, text).replace("\b", "").strip())
    return [_plain(" ".join(paragraph.split())) for paragraph in found if paragraph.strip()]


def _cell(text: str) -> str:
    """Return the text of a table's cell; forges end a cell at each `|`, in code, too."""
    return PIPED.sub(_html_code, _plain(" ".join(text.split())))


def _html_code(code: re.Match[str]) -> str:
    return "<code>" + re.sub(r"[|<>&\[_*]", lambda mark: f"&#{ord(mark[0])};", code[1]) + "</code>"


def _plain(text: str) -> str:
    """Escape what Markdown would take for a tag, a link or a cell's end."""
    outside = re.split(r"(`[^`]*`)", text)
    for place in range(0, len(outside), 2):
        escaped = outside[place].replace("<", "&lt;").replace("[", "&#91;").replace("*", "\\*")
        outside[place] = escaped.replace("_", "\\_").replace("|", "\\|")
    return "".join(outside)


def filled(page: str) -> str:
    """Return the page with today's text in each place, between `<!-- cloze.NAME -->` and `end`."""
    return PLACE.sub(lambda place: "\n".join(_entry(place[1])), page)


def _entry(name: str) -> Iterator[str]:
    yield f"<!-- {name} -->"
    documented = resolve_name(name.replace("cloze.", "cloze:", 1))
    is_error = inspect.isclass(documented) and issubclass(documented, Exception)
    yield from _object(name, documented, "###" if is_error else "##")
    if inspect.isclass(documented) and not is_error:
        for method, function in vars(documented).items():
            if not method.startswith("_"):
                yield from _object(f"{documented.__name__}.{method}", function, "###")
    yield "<!-- end -->"


def _object(name: str, documented: Any, heading: str) -> Iterator[str]:
    yield from (f"{heading} `{name}`", "")
    if inspect.isfunction(documented):
        yield from ("```text", *_signature(name.rpartition(".")[2], documented), "```", "")
    summary, *sections = SECTION.split(inspect.getdoc(documented) or "")
    yield from (summary.strip(), "")
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        text = textwrap.dedent(body).strip("\n")
        yield from (f"**{TITLES.get(title, title)}**", "")
        if title == "Examples":
            yield from ("```pycon", text, "```", "")
        elif title in ("Returns", "Yields"):
            yield from (" ".join(text.split()), "")
        else:
            entries = re.split(r"\n(?=\S)", text)  # further lines of an entry are indented
            yield from (_item(" ".join(entry.split())) for entry in entries)
            yield ""


def _item(entry: str) -> str:
    name, _, text = entry.partition(": ")
    return f"- `{name}`: {text}"


def _signature(name: str, function: Any) -> list[str]:
    """Return the call, one parameter a line where it is long."""
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    shown = [_parameter(each) for each in parameters]
    keywords = [each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters]
    if any(keywords):
        shown.insert(keywords.index(True), "*")
    end = f") -> {signature.return_annotation}"
    whole = f"{name}({', '.join(shown)}{end}"
    if len(whole) < 90:
        return [whole]
    return [f"{name}(", *(f"    {each}," for each in shown), end]


def _parameter(parameter: inspect.Parameter) -> str:
    """Return a parameter as its source has it: annotations are text until they are needed."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}: {parameter.annotation}"
    is_required = parameter.default is inspect.Parameter.empty
    return text if is_required else f"{text} = {parameter.default!r}"


def pages() -> dict[Path, str]:
    """Return the pages below docs/reference that are made from the program."""
    folder = Path(__file__).parent / "reference"
    by_hand = folder / "python.md"
    return {
        folder / "config.md": config_page(),
        folder / "commands.md": commands_page(),
        by_hand: filled(by_hand.read_text(encoding="utf-8")),
    }


def stale() -> list[str]:
    """Return the names of the pages that are not what the program says."""
    return [
        path.name
        for path, page in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != page
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(" ".join(stale()) or 0)
    for path, page in pages().items():
        path.write_text(page, encoding="utf-8")
