"""A file of the repository as facts: the names that it binds, and what each of them uses.

Facts are lists, tuples and strings, so that `import_graph.py` keeps them from one start to the
next: to parse all files takes many times as long as to see that they did not change.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

PRODUCT = ("core", "pipeline", "model", "flows", "labs")
PACKAGES = ("cloze", "tests", "benchmarks", "infra", "docs")  # others are libraries
DOTTED = re.compile(r"\b(?:cloze|tests|benchmarks)(?:\.\w+)+(?::\w+)?")
_FROM = re.compile(r"\bfrom ((?:cloze|tests|benchmarks)[.\w]*) import \(?([\w, \n]+)")
_STARTS = re.compile(
    r"ENTRY|flows\.cli\b|flows import .*\bcli\b|\"-m\", \"cloze\"|\bcloze\(|installed\(|CliRunner"
)

# What a name uses, as the file says it:
#   ("name", NAME)                   another name of the file
#   ("ref", MODULE, NAME, …)         a name of another module
#   ("at", MODULE, NAME)             what happens at an import
#   ("dotted", "package.module:NAME"), ("from", MODULE, NAME)    in a string
#   ("path", TEXT, PART, …)          perhaps the path of a file, with the parts of `A / "b" / "c"`
#   ("words", WORD, …)               of a string in a test
#   ("fixture", NAME), ("stage", NAME), ("worker", MODULE)
Use = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The facts of a Python file.

    Attributes:
        lines: first and last line of each statement, and the top-level name that it binds; "" is
            what is done at the import.
        imports: the module of each imported name, and the name in it.
        uses: by top-level name.
        tables: keys of tables of names, and the references in their rows.
        commands: those of a plug-in, and their references.
        unasked: hooks and autouse fixtures, which each test below has.
        starts: whether it starts the program, or calls it.
        literals: the tables of commands of the program.
    """

    path: str
    module: str
    line_count: int
    lines: list[tuple[int, int, str]]
    imports: dict[str, tuple[str, str | None]]
    uses: dict[str, list[Use]]
    tables: list[tuple[str, list[str]]]
    commands: list[tuple[str, str]]
    unasked: list[str]
    starts: bool
    literals: dict[str, Any]

    @property
    def symbols(self) -> list[str]:
        return [name for name in self.uses if name]

    def name_at(self, line: int) -> str | None:
        """Return the top-level name whose statement has this line.

        It is "" for what is done at the import, and None for imports, docstrings and comments.
        """
        return next((name for first, last, name in self.lines if first <= line <= last), None)


def read_source(path: str, text: str) -> Source:
    """Return the facts of a Python file."""
    tree = ast.parse(text)
    file = _File(path, _WithConstants(_constants(tree)).visit(tree).body)
    is_test, starts = path.startswith("tests/"), _STARTS.search(text) is not None
    named = [*file.symbols.items(), ("", [s for s in file.own if not _is_silent(s)])]
    lines = [
        (first, statement.end_lineno or first, name)
        for name, statements in named
        for statement in statements
        for first in [min([statement.lineno, *(d.lineno for d in _decorators(statement))])]
    ]
    values = [getattr(s, "value", None) for found in file.symbols.values() for s in found]
    tables = [table for table in values if isinstance(table, ast.Dict)]
    tables += [part for value in values for part in _rows(value)]  # of a plug-in's declaration
    return Source(
        path=path,
        module=module_name(path),
        line_count=text.count("\n") + 1,
        lines=lines,
        imports=file.imports,
        uses={name: file.uses(found, is_test) for name, found in file.named().items()},
        tables=[row for table in tables for row in _references(table)],
        commands=[row for s in file.symbols.get("PLUGIN", ()) for row in _commands(s)],
        unasked=[name for name, found in file.symbols.items() if _is_unasked(name, found[0])],
        starts=starts,
        literals={
            name: ast.literal_eval(getattr(file.symbols[name][0], "value", None) or "{}")
            for name in (("COMMANDS", "MODULES") if path == "flows/cli.py" else ())
            if name in file.symbols
        },
    )


class _File:
    """The statements of a file by the name they bind, and the imports among them."""

    def __init__(self, path: str, body: Iterable[ast.stmt]) -> None:
        self.path = path
        self.symbols: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, tuple[str, str | None]] = {}
        self.own: list[ast.stmt] = []
        self._add(body)
        self.places: dict[str, list[str]] = {}
        for name, statements in self.symbols.items():  # STACK = REPOSITORY / "infra" / "stack.py"
            if parts := place_parts(getattr(statements[0], "value", None), self.places):
                self.places[name] = parts

    def named(self) -> dict[str, list[ast.stmt]]:
        return {**self.symbols, "": self.own}

    def uses(self, statements: Iterable[ast.stmt], is_test: bool) -> list[Use]:
        found = _Uses(self, is_test)
        for statement in statements:
            found.visit(statement)
        return list(found.uses)

    def _add(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    self.imports.update(_bound_names(statement))
                    self.own.append(statement)
                case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                    self.symbols.setdefault(statement.name, []).append(statement)
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                    targets = getattr(statement, "targets", None) or [statement.target]  # type: ignore[union-attr]
                    for name in (part for target in targets for part in ast.walk(target)):
                        if isinstance(name, ast.Name):
                            self.symbols.setdefault(name.id, []).append(statement)
                case ast.If() | ast.Try() | ast.With():
                    self._add(_blocks(statement))
                    self.own += [statement] if not _is_for_types(statement) else []
                case _:
                    self.own.append(statement)


class _Uses(ast.NodeVisitor):
    """Collects what the statements of one name use."""

    def __init__(self, file: _File, is_test: bool) -> None:
        self.file, self.is_test, self.imports = file, is_test, file.imports
        self.uses: dict[Use, None] = {}

    def add(self, *use: str) -> None:
        self.uses[use] = None

    def visit_Import(self, node: ast.Import) -> None:
        self._import(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._import(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        bound = _bound_names(node)
        self.imports = {**self.imports, **bound}
        for module, name in bound.values():  # what happens at the import itself
            if module.startswith(PACKAGES):
                self.add("at", module, *([name] if name else []))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        for name in names if self.is_test else ():
            self.add("fixture", name)
        defaults = [value for value in arguments.kw_defaults if value]
        for part in (*node.decorator_list, *arguments.defaults, *defaults, *node.body):
            self.visit(part)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        self._chain([node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        names, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            names.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            self._chain([inner.id, *names])
        else:
            self.visit(inner)

    def _chain(self, names: list[str]) -> None:
        if names[0] in self.imports:
            module, symbol = self.imports[names[0]]
            if module.startswith(PACKAGES):
                self.add("ref", module, *([symbol] if symbol else []), *names[1:])
        elif names[0] in self.file.symbols:
            self.add("name", names[0])

    def visit_BinOp(self, node: ast.BinOp) -> None:
        parts = place_parts(node, self.file.places)
        if not parts:
            self.generic_visit(node)
            return
        self.add("path", "/".join(parts), *parts)
        inner: ast.expr = node
        while isinstance(inner, ast.BinOp):  # its texts are parts of one path
            if not isinstance(inner.right, ast.Constant):
                self.visit(inner.right)
            inner = inner.left
        self.visit(inner)

    def visit_Call(self, node: ast.Call) -> None:
        words = [a.value for a in node.args if isinstance(a, ast.Constant)]
        match node.func, node.args:
            # `patch.setattr(module, "name", …)`: not all of the module
            case ast.Attribute(attr="setattr"), [ast.Name(id=name), ast.Constant(), *rest]:
                self._chain([name, str(words[0])])
                for part in (node.func, *rest, *node.keywords):
                    self.visit(part)
                return
            case ast.Attribute(attr="usefixtures"), _:
                for word in words:
                    self.add("fixture", str(word))
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        if node.arg in ("stage", "worker") and isinstance(value, str):
            self.add(node.arg, value)
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        text = node.value
        if not isinstance(text, str) or len(text) > 20_000:
            return
        for use in names_in(text):
            self.add(*use)
        if len(text) < 80 and "\n" not in text:
            self.add("path", text.rstrip("/"))
        if self.is_test and len(text) < 400 and (words := text.split()):
            self.add("words", *words)


def names_in(text: str) -> Iterator[Use]:
    """Yield what a string names: `package.module:NAME`, or imports of a program."""
    if "." in text or " import " in text:
        for module, names in _FROM.findall(text):
            for name in re.findall(r"\w+", names):
                yield ("from", module, name)
        for dotted in DOTTED.findall(text):
            yield ("dotted", dotted)


def place_parts(node: ast.AST | None, places: dict[str, list[str]]) -> list[str]:
    """Return the texts of `ANY / "a" / "b"`, after those of ANY where it is such a constant."""
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            before, complete = place_parts(left, places), _is_place(left)
            match right:
                case ast.Constant(str(text)) if complete:
                    return [*before, text.strip("/")]
            return before
        case ast.Name(name):
            return places.get(name, [])
        case ast.IfExp(body=body):
            return place_parts(body, places)
    return []


def _is_place(node: ast.expr) -> bool:
    """Return whether all parts of a path so far are texts."""
    while isinstance(node, ast.BinOp):
        if not isinstance(node.right, ast.Constant):
            return False
        node = node.left
    return True


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


def _references(table: ast.Dict) -> Iterator[tuple[str, list[str]]]:
    """Yield the keys of a table such as `{"books": "cloze.….books.reader:reader"}`."""
    for key, value in zip(table.keys, table.values, strict=True):
        texts = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
        named = [dotted for text in texts if isinstance(text, str) for dotted in _dotted(text)]
        if isinstance(key, ast.Constant) and key.value and named:
            yield str(key.value), named


def _dotted(text: str) -> list[str]:
    return [":".join(words) for kind, *words in names_in(text) if kind in ("from", "dotted")]


def _rows(declaration: ast.expr | None) -> Iterator[ast.Dict]:
    """Yield the tables of `Row`s in `PLUGIN = Plugin(rows={"readers": {"books": Row(…)}})`."""
    if isinstance(declaration, ast.Call):
        for part in ast.walk(declaration):
            if isinstance(part, ast.Dict) and any(isinstance(v, ast.Call) for v in part.values):
                yield part


def _commands(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield the name and the reference of each command of a plug-in."""
    for part in ast.walk(statement):
        for key, rows in (
            zip(part.keys, part.values, strict=True) if isinstance(part, ast.Dict) else ()
        ):
            if ast.unparse(key or ast.Constant("")) == "'commands'" and isinstance(rows, ast.Dict):
                for name, row in zip(rows.keys, rows.values, strict=True):
                    match name, row:
                        case ast.Constant(command), ast.Call(args=[ast.Constant(reference), *_]):
                            yield str(command), str(reference)


def module_name(path: str) -> str:
    """Return the name by which a file is imported."""
    name = path.removesuffix(".py").removesuffix("/__init__").removeprefix("src/").replace("/", ".")
    return f"cloze.{name}" if name.startswith(PRODUCT) else name


@functools.cache
def folders_above(path: str) -> list[str]:
    """Return the folders of a file, nearest first; not the repository itself."""
    return [str(folder) for folder in PurePosixPath(path).parents][:-1]


def _bound_names(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str | None]]:
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


def _decorators(node: ast.stmt) -> list[ast.expr]:
    return getattr(node, "decorator_list", [])


def _is_unasked(name: str, node: ast.stmt) -> bool:
    decorated = " ".join(ast.unparse(part) for part in _decorators(node))
    return name.startswith("pytest_") or "autouse=True" in decorated


def _is_silent(node: ast.stmt) -> bool:
    """Return whether a statement does nothing of its own: an import, or a docstring."""
    return isinstance(node, ast.Import | ast.ImportFrom) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
