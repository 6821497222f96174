"""A Python file of the repository as names: the statements that bind each, and the imports."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

PRODUCT = ("core", "pipeline", "model", "flows", "labs")
_STARTS = re.compile(r"ENTRY|flows\.cli\b|\"-m\", \"cloze\"|\bcloze\(|installed\(|CliRunner")


@dataclass
class Source:
    """A Python file: its statements by the name they bind, and the imports among them."""

    path: str
    module: str
    text: str
    symbols: dict[str, list[ast.stmt]] = field(default_factory=lambda: defaultdict(list))
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    own: list[ast.stmt] = field(default_factory=list)

    @classmethod
    def read(cls, root: Path, path: str) -> Source:
        text = (root / path).read_text()
        source = cls(path, module_name(path), text)
        tree = ast.parse(text)
        source._add(_WithConstants(_constants(tree)).visit(tree).body)
        return source

    def _add(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    self.imports.update(bound_names(statement))
                    self.own.append(statement)
                case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                    self.symbols[statement.name].append(statement)
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                    targets = getattr(statement, "targets", None) or [statement.target]  # type: ignore[union-attr]
                    for target in targets:
                        for name in ast.walk(target):
                            if isinstance(name, ast.Name):
                                self.symbols[name.id].append(statement)
                case ast.If() | ast.Try() | ast.With():
                    self._add(child for child in _blocks(statement))
                    self.own += [statement] if not _is_for_types(statement) else []
                case _:
                    self.own.append(statement)

    @functools.cached_property
    def starts_program(self) -> bool:
        return _STARTS.search(self.text) is not None

    @property
    def line_count(self) -> int:
        return self.text.count("\n") + 1

    def name_at(self, line: int) -> str | None:
        """Return the top-level name whose statement has this line.

        It is "" for what is done at the import, and None for imports, docstrings and comments.
        """
        named = [*self.symbols.items(), ("", [s for s in self.own if not _is_silent(s)])]
        for name, statements in named:
            for statement in statements:
                first = min([statement.lineno, *(d.lineno for d in decorators_of(statement))])
                if first <= line <= (statement.end_lineno or first):
                    return name
        return None


class _WithConstants(ast.NodeTransformer):
    """Write f-strings of a module's constants out: `f"{_LAB}.stages:INDEX"` names a place, too."""

    def __init__(self, constants: dict[str, str]) -> None:
        self.constants = constants

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts = [self._text_of(part) for part in node.values]
        if any(part is None for part in parts):
            return node
        return ast.copy_location(ast.Constant("".join(part or "" for part in parts)), node)

    def _text_of(self, part: ast.expr) -> str | None:
        if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
            return self.constants.get(part.value.id)
        return str(part.value) if isinstance(part, ast.Constant) else None


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts of `NAME = "text"`."""
    found = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(str(text))):
                found[name] = text
    return found


def module_name(path: str) -> str:
    """Return the name by which a file is imported."""
    name = path.removesuffix(".py").removesuffix("/__init__").removeprefix("src/").replace("/", ".")
    return f"cloze.{name}" if name.startswith(PRODUCT) else name


@functools.cache
def folders_above(path: str) -> list[str]:
    """Return the folders of a file, nearest first; not the repository itself."""
    return [str(folder) for folder in PurePosixPath(path).parents][:-1]


def bound_names(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str | None]]:
    """Return what an import binds: the module, and the name in it."""
    if isinstance(node, ast.ImportFrom):
        return {a.asname or a.name: (node.module or "", a.name) for a in node.names}
    return {
        a.asname or a.name.split(".")[0]: (a.name if a.asname else a.name.split(".")[0], None)
        for a in node.names
    }


def _blocks(node: ast.If | ast.Try | ast.With) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(node, name, [])
    for handler in getattr(node, "handlers", []):
        yield from handler.body


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def decorators_of(node: ast.stmt) -> list[ast.expr]:
    return getattr(node, "decorator_list", [])


def _is_silent(node: ast.stmt) -> bool:
    """Return whether a statement does nothing of its own: an import, or a docstring."""
    return isinstance(node, ast.Import | ast.ImportFrom) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
