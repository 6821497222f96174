"""Which names of the repository's Python files use which others, read from their syntax.

A node is a file and a top-level name in it, such as `("core/storage.py", "join")`. Name "" is
what the file does when it is imported, and name "*" is all of it. Data files have the name "*"
only. Names, and not files, so that a test that imports one function does not reach all that its
module imports.

Besides imports (late ones included), these are uses:

    "package.module:NAME"         in any string but a docstring, such as a table or a program
    a key of a table of names     in a test: `"books"` reaches the reader of that name
    `-m package.module`, verbs    in a test that starts the program: the module of the command
    a fixture                     in the arguments of a test: of its file or a conftest above
    the name of a data file       or of a folder of data files beside the module
"""

from __future__ import annotations

import ast
import functools
import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.tools.source_file import PRODUCT, Source, bound_names, decorators_of, folders_above

Node = tuple[str, str]
NOWHERE: Node = ("", "")
FOLDERS = (
    "core",
    "pipeline",
    "model",
    "flows",
    "labs",
    "tests",
    "benchmarks",
    "infra",
    "src/cloze",
)
# How far a use is: within a file, to another file, by a key or a path, by a table of names.
WITHIN, IMPORT, KEY, TABLE = 0.25, 1.0, 1.5, 3.0
_DOTTED = re.compile(r"\b(?:cloze|tests|benchmarks)(?:\.\w+)+(?::\w+)?")
_FROM = re.compile(r"\bfrom ((?:cloze|tests|benchmarks)[.\w]*) import \(?([\w, \n]+)")
_CLI = "flows/cli.py"


@dataclass(frozen=True, slots=True)
class Step:
    """The next node on the way from a test to what changed, and why it is used."""

    node: Node  # or NOWHERE
    distance: float
    why: str


class ImportGraph:
    """All uses between the files of a repository."""

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        """Args: files: paths in the repository, of code and data."""
        self.files = set(files)
        names = [f for f in self.files if f.endswith(".py") and f.startswith(FOLDERS)]
        self.sources = {name: Source.read(root, name) for name in sorted(names)}
        self.paths = {source.module: name for name, source in self.sources.items()}
        self.data = {name for name in self.files if not name.endswith(".py")}
        self._folders = _data_folders(self.data, self.sources)
        self._presets = {
            PurePosixPath(name).stem: name
            for name in self.data
            if name.startswith(PRODUCT) and "presets" in PurePosixPath(name).parts
        }
        self.keys: dict[str, set[Node]] = defaultdict(set)
        for source in self.sources.values():
            if source.path.startswith(PRODUCT):
                self._read_tables(source)
        self.commands = self._read_commands()
        self.users: dict[Node, dict[Node, tuple[float, str]]] = defaultdict(dict)
        for source in self.sources.values():
            self._connect(source)
        for stem, name in self._presets.items():  # a preset that is based on another
            for word in re.findall(r"base: *(\S+)", (root / name).read_text()):
                if (base := self._presets.get(PurePosixPath(word).stem)) and base != name:
                    self._use((name, "*"), (base, "*"), IMPORT, f"is the base of {stem}")

    def tests(self) -> list[str]:
        """Return the test files."""
        return [p for p in self.sources if PurePosixPath(p).name.startswith("test_")]

    def steps_to(self, changed: Mapping[Node, float]) -> dict[Node, Step]:
        """Return the shortest way of each node that reaches one of `changed`.

        Args:
            changed: nodes, and the distance at which each starts.
        """
        found: dict[Node, Step] = {}
        waiting = [(distance, node, NOWHERE, "changed") for node, distance in changed.items()]
        heapq.heapify(waiting)
        while waiting:
            distance, node, following, why = heapq.heappop(waiting)
            if node in found:
                continue
            found[node] = Step(following, distance, why)
            for user, (cost, reason) in self.users[node].items():
                if user not in found:
                    heapq.heappush(waiting, (distance + cost, user, node, reason))
        return found

    def nodes_of(self, path: str) -> Iterator[Node]:
        """Yield the nodes of a file, but not what it does when it is imported."""
        yield (path, "*")
        if source := self.sources.get(path):
            yield from ((path, name) for name in source.symbols)

    def find(self, module: str, names: list[str]) -> Node | None:
        """Return the node of `module.names`; None if the module is not of the repository."""
        while names and f"{module}.{names[0]}" in self.paths:
            module = f"{module}.{names.pop(0)}"
        path = self.paths.get(module)
        if path is None:
            return None
        source = self.sources[path]
        if names and (names[0] in source.symbols or names[0] in source.imports):
            return (path, names[0])
        return (path, "*")

    def named_in(self, text: str) -> Iterator[Node]:
        """Yield the nodes that a string names: `package.module:NAME`, or imports of a program."""
        if "." not in text and " import " not in text:
            return
        for module, names in _FROM.findall(text):
            for name in re.findall(r"\w+", names):
                if node := self.find(module, [name]):
                    yield node
        for dotted in _DOTTED.findall(text):
            words = re.split("[.:]", dotted)
            for size in range(len(words), 1, -1):
                if ".".join(words[:size]) in self.paths:
                    if node := self.find(".".join(words[:size]), words[size:]):
                        yield node
                    break

    def _use(self, user: Node, used: Node, cost: float, why: str = "") -> None:
        before = self.users[used].get(user)
        if user != used and (before is None or cost < before[0]):
            self.users[used][user] = (cost, why)

    def _read_tables(self, source: Source) -> None:
        """Add the keys of tables of names, such as `{"books": "cloze.….books.reader:reader"}`."""
        statements = (s for found in source.symbols.values() for s in found)
        values = [getattr(statement, "value", None) for statement in statements]
        rows = [part for value in values for part in _rows(value)]  # of a plug-in's declaration
        for table in (*values, *rows):
            if isinstance(table, ast.Dict):
                for key, value in zip(table.keys, table.values, strict=True):
                    name = str(key.value) if isinstance(key, ast.Constant) else ""
                    for part in ast.walk(value) if name else ():
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            self.keys[name].update(self.named_in(part.value))

    def _read_commands(self) -> dict[str, Node]:
        """Return the function of each command of the program."""
        source = self.sources.get(_CLI)
        if source is None or "MODULES" not in source.symbols:
            return {}
        tables = {
            name: ast.literal_eval(getattr(source.symbols[name][0], "value", None) or "{}")
            for name in ("COMMANDS", "MODULES")
        }
        modules = {word: m for m, words in tables["MODULES"].items() for word in words.split()}
        found = {}
        for command in (name for rows in tables["COMMANDS"].values() for name in rows):
            function = command.replace("-", "_")
            module = f"cloze.flows.commands.{modules.get(command, function)}"
            if node := self.find(module, [function]):
                found[command] = node
        for declared in (s for s in self.sources.values() if s.path.endswith("/plugin.py")):
            for statement in declared.symbols.get("PLUGIN", ()):
                for command, reference in _commands(getattr(statement, "value", None)):
                    found.update((command, node) for node in self.named_in(reference))
        return found

    def _connect(self, source: Source) -> None:
        path = source.path
        for name, statements in source.symbols.items():
            self._use((path, "*"), (path, name), WITHIN)
            if path != "tests/conftest.py":  # else all tests reach what one of its fixtures does
                self._use((path, name), (path, ""), WITHIN)
            self._add_uses((path, name), statements, source)
        self._use((path, "*"), (path, ""), WITHIN)
        self._add_uses((path, ""), source.own, source)
        for name, (module, symbol) in source.imports.items():
            node = self.find(module, [symbol] if symbol else [])
            if node is not None:
                self._use((path, name), node, IMPORT)
        for folder in folders_above(path) if path.startswith("tests/") else ():
            for name in self._of_each_test(f"{folder}/conftest.py"):
                self._use((path, ""), (f"{folder}/conftest.py", name), TABLE, "of each test")

    @functools.cache  # noqa: B019
    def _of_each_test(self, path: str) -> list[str]:
        """Return the hooks and the fixtures that tests below a conftest.py have unasked."""
        found = self.sources[path].symbols if path in self.sources else {}
        decorated = {
            name: " ".join(ast.unparse(part) for part in decorators_of(nodes[0]))
            for name, nodes in found.items()
        }
        return [
            name
            for name, text in decorated.items()
            if name.startswith("pytest_") or "autouse=True" in text
        ]

    def _add_uses(self, user: Node, statements: Iterable[ast.stmt], source: Source) -> None:
        uses = _Uses(self, source, user)
        for statement in statements:
            uses.visit(statement)

    def fixture(self, path: str, name: str) -> Node | None:
        """Return the fixture of this name that a test in `path` would get."""
        source = self.sources[path]
        if name in source.symbols or name in source.imports:
            return (path, name)
        for folder in folders_above(path):
            conftest = self.sources.get(f"{folder}/conftest.py")
            if conftest and (name in conftest.symbols or name in conftest.imports):
                return (conftest.path, name)
        return None

    def data_named(self, path: str, text: str) -> Iterator[str]:
        """Yield the data files that a string in `path` names, as file or as folder."""
        if text in self.files:
            yield text
        yield from self._folders.get(text, ())
        if text.startswith(".") and str(PurePosixPath(path).with_suffix("")) + text in self.data:
            yield str(PurePosixPath(path).with_suffix("")) + text  # Path(__file__).with_suffix(…)
        for folder in folders_above(path):
            name = f"{folder}/{text}"
            if name in self.data:
                yield name
            yield from self._folders.get(name, ())


class _Uses(ast.NodeVisitor):
    """Adds what the statements of one node use."""

    def __init__(self, graph: ImportGraph, source: Source, user: Node) -> None:
        self.graph, self.source, self.user = graph, source, user
        self.is_test = source.path.startswith("tests/")
        self.starts = self.is_test and source.starts_program
        self.imports = source.imports

    def use(self, node: Node | None, cost: float = IMPORT, why: str = "") -> None:
        if node is not None:
            self.graph._use(self.user, node, WITHIN if node[0] == self.user[0] else cost, why)

    def visit_Import(self, node: ast.Import) -> None:
        self._import(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._import(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        bound = bound_names(node)
        self.imports = {**self.imports, **bound}
        for module, name in bound.values():  # what happens at the import itself
            found = self.graph.find(module, [name] if name else [])
            if found is not None:
                self.use((found[0], ""))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        for name in names if self.is_test else ():
            self.use(self.graph.fixture(self.source.path, name))
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
            self.use(self.graph.find(module, [*([symbol] if symbol else []), *names[1:]]))
        elif names[0] in self.source.symbols:
            self.use((self.source.path, names[0]))

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
                    self.use(self.graph.fixture(self.source.path, str(word)))
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        if node.arg == "stage" and isinstance(value, str):
            for found in self.graph.keys.get(value, ()):
                self.use(found, IMPORT, f"stage {value}")
        if node.arg == "worker" and isinstance(value, str):
            self.use(self.graph.find(f"{value}.worker", []), IMPORT, "its worker")
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        text = node.value
        if not isinstance(text, str) or len(text) > 20_000:
            return
        for found in self.graph.named_in(text):
            self.use(found, IMPORT if self.is_test else TABLE, "by name")
        if len(text) < 80 and "\n" not in text:
            for name in self.graph.data_named(self.source.path, text.rstrip("/")):
                self.use((name, "*"), KEY, f"by its path {text!r}")
        for word in text.split() if self.is_test and len(text) < 400 else ():
            for found in self.graph.keys.get(word, ()):
                self.use(found, KEY, f"by its key {word!r}")
            if preset := self.graph._presets.get(word):
                self.use((preset, "*"), KEY, f"by its name {word!r}")
            if self.starts and word in self.graph.commands:
                self.use(self.graph.commands[word], KEY, f"starts `cloze {word}`")


def _data_folders(data: Iterable[str], code: Iterable[str]) -> dict[str, list[str]]:
    """Return the data files below each folder without code, such as `templates`."""
    of_code = {str(folder) for name in code for folder in PurePosixPath(name).parents}
    found: dict[str, list[str]] = defaultdict(list)
    for name in data:
        for folder in map(str, PurePosixPath(name).parents):
            if folder not in of_code:
                found[folder].append(name)
    return found


def _rows(declaration: ast.expr | None) -> Iterator[ast.Dict]:
    """Yield the tables of `Row`s in `PLUGIN = Plugin(rows={"readers": {"books": Row(…)}})`."""
    if isinstance(declaration, ast.Call):
        for part in ast.walk(declaration):
            if isinstance(part, ast.Dict) and any(isinstance(v, ast.Call) for v in part.values):
                yield part


def _commands(declaration: ast.expr | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the reference of each command of a plug-in."""
    for part in ast.walk(declaration) if isinstance(declaration, ast.Call) else ():
        for key, rows in (
            zip(part.keys, part.values, strict=True) if isinstance(part, ast.Dict) else ()
        ):
            if ast.unparse(key or ast.Constant("")) == "'commands'" and isinstance(rows, ast.Dict):
                for name, row in zip(rows.keys, rows.values, strict=True):
                    match name, row:
                        case ast.Constant(command), ast.Call(args=[ast.Constant(reference), *_]):
                            yield str(command), str(reference)
