"""Edits of Python code that change its behaviour, each at one place, by the positions of its syntax.

A careful reviewer would call each of them a bug. Docstrings, type hints, messages (of errors, logs
and help) and `__all__` are left alone.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_NAMES = {
    "fullmatch": "match", "match": "search", "min": "max", "max": "min", "any": "all", "all": "any",
    "sorted": "list", "lstrip": "rstrip", "rstrip": "lstrip", "startswith": "endswith",
    "partition": "rpartition", "rpartition": "partition", "union": "intersection",
    "append": "count", "floor": "ceil", "ceil": "floor",
}  # fmt: skip
_EXCEPTIONS = {"OSError": "FileNotFoundError", "FileNotFoundError": "NotADirectoryError"}
_MESSAGES = re.compile(r"log|debug|info|warn|print|echo|describe|Option|option|Field|[A-Z]\w*Error")
_HELP = ("help", "description", "metavar", "title")
_CHECKS = ("strict", "frozen", "slots", "kw_only", "stacklevel")  # keywords that only check callers


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a file."""

    line: int
    kind: str
    start: int  # in the file's bytes
    end: int
    text: str
    statement: int  # the line at which its statement begins

    def apply(self, content: bytes) -> bytes:
        return content[: self.start] + self.text.encode() + content[self.end :]

    def describe(self, content: bytes) -> str:
        """Return the edit in one line: before, and after."""
        before, after = content[self.start : self.end].decode(), self.text
        return " ".join(f"{self.kind}: {before} ⇒ {after}".split())


def edits_of(content: bytes) -> list[Edit]:
    """Return all edits of a file; `is_valid` says whether one leaves code that compiles."""
    return list(_Finder(content).find(ast.parse(content), 0, False))


class _Finder:
    """Walks over the syntax of a file."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.starts = [0]
        for line in content.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def find(self, node: ast.AST, statement: int, quiet: bool) -> Iterator[Edit]:
        """Yield the edits at and below a node.

        Args:
            statement: line of the statement around it.
            quiet: whether strings here are text for people.
        """
        if isinstance(node, ast.stmt) and not self._is_elif(node):
            decorators = getattr(node, "decorator_list", [])
            statement = min([node.lineno, *(d.lineno for d in decorators)])
        if _is_left_alone(node):
            return
        quiet = quiet or _speaks(node)
        for kind, place, new in self._here(node, quiet):
            text = new if isinstance(new, str) else _source(new, node)
            yield self._edit(kind, place, text, statement)
        if isinstance(node, ast.JoinedStr):  # Python 3.11 has no exact positions within
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment", "ctx", "format_spec"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.find(child, statement, quiet)

    def _edit(self, kind: str, place: ast.AST, text: str, statement: int) -> Edit:
        line, column = place.lineno, place.col_offset  # type: ignore[attr-defined]
        end_line, end_column = place.end_lineno, place.end_col_offset  # type: ignore[attr-defined]
        start, end = self.starts[line - 1] + column, self.starts[end_line - 1] + end_column
        return Edit(line, kind, start, end, text, statement)

    def _is_elif(self, node: ast.stmt) -> bool:
        start = self.starts[node.lineno - 1] + node.col_offset
        return self.content[start : start + 4] == b"elif"

    def _here(self, node: ast.AST, quiet: bool) -> Iterator[tuple[str, ast.AST, ast.AST | str]]:
        """Yield kind, the node to replace, and what replaces it."""
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
                yield "comparison", node, _with(node, ops=[_COMPARISONS[type(operator)]()])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield "not dropped", node, operand
            case ast.BoolOp(values=values):
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                yield "and/or", node, _with(node, op=other)
                for index in range(len(values)):
                    yield "operand dropped", node, _without(node, "values", index)
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                yield "constant", node, str(number + 1)
                yield "constant", node, str(number - 1)
            case ast.Constant(value=bool() as truth):
                yield "constant", node, str(not truth)
            case ast.Constant(value=str() as text) if not quiet:
                yield from self._strings(node, text)
            case ast.JoinedStr(values=values) if not quiet:
                for index, value in enumerate(values):
                    if isinstance(value, ast.FormattedValue) and len(values) > 1:
                        yield "part of a string dropped", node, _without(node, "values", index)
            case ast.Slice(lower=lower, upper=upper) if lower or upper:
                for name, bound in (("lower", lower), ("upper", upper)):
                    if bound is not None:
                        yield "slice", node, _with(node, **{name: _plus_one(bound)})
            case ast.BinOp(op=operator, left=left) if not quiet:
                if type(operator) in _OPERATORS and not _is_text(node.right):
                    yield "operator", node, _with(node, op=_OPERATORS[type(operator)]())
                yield "operand dropped", node, left
            case ast.Call():
                yield from _calls(node)
            case ast.IfExp(body=body, orelse=orelse):
                yield "condition", node, body
                yield "condition", node, orelse
            case ast.comprehension(ifs=[*tests]):
                for test in tests:
                    yield "condition", test, "True"
            case ast.Tuple() | ast.List() | ast.Set() if _is_read(node):
                for index in range(len(node.elts) if len(node.elts) > 1 else 0):
                    yield "element dropped", node, _without(node, "elts", index)
            case ast.Dict(keys=keys, values=values) if len(keys) > 1:
                for index in range(len(keys)):
                    changed = _without(node, "keys", index)
                    yield "element dropped", node, _without(changed, "values", index)
            case ast.If(test=test) | ast.While(test=test):
                yield "condition", test, "True"
                yield "condition", test, "False"
            case ast.stmt():
                yield from _statements(node)
            case ast.ExceptHandler(type=ast.Tuple() as types):
                for index in range(len(types.elts)):
                    yield "exception", types, _without(types, "elts", index)
            case ast.ExceptHandler(type=ast.Name(id=name) as single):
                yield "exception", single, _EXCEPTIONS.get(name, "Exception")

    def _strings(self, node: ast.Constant, text: str) -> Iterator[tuple[str, ast.AST, str]]:
        start = self.starts[node.lineno - 1] + node.col_offset
        if self.content[start : start + 1] == b"r":
            raw = ast.get_source_segment(self.content.decode(), node) or ""
            for found in re.finditer(r"(?<=[\w)\]])[+*?]|(?<=\])[+*]", raw):
                other = {"+": "*", "*": "+", "?": ""}[found[0]]
                yield "regular expression", node, raw[: found.start()] + other + raw[found.end() :]
        elif 0 < len(text) < 30 and " " not in text.strip():
            yield "string", node, repr(text[:-1] if len(text) > 1 else text + text)
            yield "string", node, repr(text + "_")


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST, ast.AST | str]]:
    """Yield edits of a call."""
    for index, keyword in enumerate(node.keywords):
        if keyword.arg and not _is_left_alone(keyword):
            yield "keyword dropped", node, _without(node, "keywords", index)
    match node.func:
        case ast.Name(id=name) if name in _NAMES:
            yield "function", node, _with(node, func=ast.Name(_NAMES[name]))
        case ast.Attribute(attr=name) as function if name in _NAMES:
            yield "function", node, _with(node, func=_with(function, attr=_NAMES[name]))
        case ast.Name(id="suppress") | ast.Attribute(attr="suppress"):
            for index in range(len(node.args)):
                yield "exception", node, _without(node, "args", index)


def _statements(node: ast.stmt) -> Iterator[tuple[str, ast.AST, ast.AST | str]]:
    """Yield edits of a whole statement."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) if not _speaks(node.value):
            yield "call dropped", node, "pass"
        case ast.AugAssign(target=target, value=value, op=operator):
            yield "assignment", node, f"{ast.unparse(target)} = {ast.unparse(value)}"
            if type(operator) in _OPERATORS:
                yield "operator", node, ast.unparse(_with(node, op=_OPERATORS[type(operator)]()))
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return None", node, "return None"
        case ast.Continue():
            yield "continue/break", node, "break"
        case ast.Break():
            yield "continue/break", node, "continue"
        case ast.Raise(exc=ast.expr()):
            yield "raise dropped", node, "pass"


def _is_left_alone(node: ast.AST) -> bool:
    """Return whether nothing below a node is edited."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert():
            return True
        case ast.Expr(value=ast.Constant()):  # a docstring
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name == "__all__" or ast.unparse(value).startswith(("TypeVar(", "Literal["))
        case ast.keyword(arg=name):
            return name in (*_HELP, *_CHECKS)
    return False


def _speaks(node: ast.AST) -> bool:
    """Return whether strings in a node are text for people."""
    match node:
        case ast.Raise():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return _MESSAGES.match(name) is not None
    return False


def _is_text(node: ast.expr) -> bool:
    """Return whether an operand is a string: without `+` it is an error, and no bug."""
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def _is_read(node: ast.Tuple | ast.List | ast.Set) -> bool:
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _plus_one(bound: ast.expr) -> ast.expr:
    return ast.BinOp(bound, ast.Add(), ast.Constant(1))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _without(node: ast.AST, name: str, index: int) -> ast.AST:
    values: list[ast.AST] = list(getattr(node, name))
    del values[index]
    if isinstance(node, ast.BoolOp) and len(values) == 1:
        return values[0]
    return _with(node, **{name: values})


def _source(new: ast.AST, old: ast.AST) -> str:
    """Return the text of an expression that stands where `old` stood."""
    text = ast.unparse(new)
    binds = isinstance(old, ast.BoolOp | ast.BinOp | ast.UnaryOp | ast.IfExp | ast.Compare)
    return f"({text})" if binds else text


def is_valid(edit: Edit, content: bytes) -> bool:
    """Return whether an edit leaves another program that compiles."""
    changed = edit.apply(content)
    try:
        compile(changed, "edit", "exec", dont_inherit=True)
        return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(content))
    except (SyntaxError, ValueError):
        return False
