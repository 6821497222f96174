"""Which names of the repository's files use which others, from the facts of each file.

A node is a file and a top-level name in it, such as `("core/storage.py", "join")`. Name "" is
what the file does when it is imported, and name "*" is all of it. Other files have the name "*"
only. Names, and not files, so that a test that imports one function does not reach all that its
module imports.

Besides imports (late ones included), these are uses:

    "package.module:NAME"         in any string but a docstring, such as a table or a program, and
                                  in a configuration or a script
    a key of a table of names     in a test or a preset: `"books"` reaches the reader of that name
    `-m package.module`, verbs    in a test that starts the program: the module of the command
    a fixture                     in the arguments of a test: of its file or a conftest above
    the path of a file            or of a folder of data files, from the repository's root or from
                                  a folder above; `ROOT / "infra" / "compose.yaml"` is one path
"""

from __future__ import annotations

import fnmatch
import functools
import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.tools.facts import is_preset, read_facts
from tests.tools.source_file import PRODUCT, Source, Use, folders_above

Node = tuple[str, str]
NOWHERE: Node = ("", "")
# How far a use is: within a file, to another file, by a key or a path, by a table or a text.
WITHIN, IMPORT, KEY, TABLE = 0.25, 1.0, 1.5, 3.0
_CLI = "flows/cli.py"


@dataclass(frozen=True, slots=True)
class Step:
    """The next node on the way from a test to what changed, and why it is used."""

    node: Node  # or NOWHERE
    distance: float
    why: str


class ImportGraph:
    """All uses between the files of a repository."""

    def __init__(self, root: Path, files: Iterable[str], cache: Path | None = None) -> None:
        """Args: files: paths in the repository, of code and data; cache: see `read_facts`."""
        self.files = set(files)
        self.sources, self.texts = read_facts(root, self.files, cache)
        self.paths = {source.module: name for name, source in self.sources.items()}
        self.data = {name for name in self.files if not name.endswith(".py")}
        self._folders = _data_folders(self.data, self.sources)
        self._below = _data_folders(self.data, ())
        self._presets = {PurePosixPath(name).stem: name for name in self.data if is_preset(name)}
        self.keys: dict[str, set[Node]] = defaultdict(set)
        for source in self.sources.values():
            for key, references in source.tables if source.path.startswith(PRODUCT) else ():
                self.keys[key].update(node for text in references for node in self.named(text))
        self.commands = self._read_commands()
        self.users: dict[Node, dict[Node, tuple[float, str]]] = defaultdict(dict)
        for source in self.sources.values():
            self._connect(source)
        for name, uses in self.texts.items():
            for use in uses:
                for node, cost, why in self._of_text(name, use):
                    self._use((name, "*"), node, cost, why)

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
            for user, (cost, reason) in self.users.get(node, {}).items():
                if user not in found:
                    heapq.heappush(waiting, (distance + cost, user, node, reason))
        return found

    def nodes_of(self, path: str) -> Iterator[Node]:
        """Yield the nodes of a file, but not what it does when it is imported."""
        yield (path, "*")
        if source := self.sources.get(path):
            yield from ((path, name) for name in source.symbols)

    @functools.cache  # noqa: B019
    def find(self, module: str, *names: str) -> Node | None:
        """Return the node of `module.names`; None if the module is not of the repository."""
        while names and f"{module}.{names[0]}" in self.paths:
            module, names = f"{module}.{names[0]}", names[1:]
        path = self.paths.get(module)
        if path is None:
            return None
        source = self.sources[path]
        if names and (names[0] in source.uses or names[0] in source.imports):
            return (path, names[0])
        return (path, "*")

    @functools.cache  # noqa: B019
    def named(self, dotted: str) -> tuple[Node, ...]:
        """Return the node that `package.module:NAME` names, or `package.module.NAME`."""
        words = re.split("[.:]", dotted)
        for size in range(len(words), 1, -1):
            if ".".join(words[:size]) in self.paths:
                node = self.find(".".join(words[:size]), *words[size:])
                return (node,) if node else ()
        return ()

    def _use(self, user: Node, used: Node | None, cost: float, why: str = "") -> None:
        if used is None or user == used:
            return
        before = self.users[used].get(user)
        if before is None or cost < before[0]:
            self.users[used][user] = (cost, why)

    def _read_commands(self) -> dict[str, Node]:
        """Return the function of each command of the program."""
        literals = self.sources[_CLI].literals if _CLI in self.sources else {}
        modules = {w: m for m, words in literals.get("MODULES", {}).items() for w in words.split()}
        found = {}
        for command in (name for rows in literals.get("COMMANDS", {}).values() for name in rows):
            function = command.replace("-", "_")
            module = f"cloze.flows.commands.{modules.get(command, function)}"
            if node := self.find(module, function):
                found[command] = node
        for source in self.sources.values() if found else ():
            for command, reference in source.commands:
                found.update((command, node) for node in self.named(reference))
        return found

    def _connect(self, source: Source) -> None:
        path = source.path
        for name, uses in source.uses.items():
            self._use((path, "*"), (path, name), WITHIN)
            if path != "tests/conftest.py":  # else all tests reach what one of its fixtures does
                self._use((path, name), (path, ""), WITHIN)
            for use in uses:
                for node, cost, why in self._of_code(source, use):
                    self._use((path, name), node, WITHIN if node[0] == path else cost, why)
        for name, (module, symbol) in source.imports.items():
            self._use((path, name), self.find(module, *([symbol] if symbol else [])), IMPORT)
        for folder in folders_above(path) if path.startswith("tests/") else ():
            conftest = self.sources.get(f"{folder}/conftest.py")
            for name in conftest.unasked if conftest else ():
                self._use((path, ""), (f"{folder}/conftest.py", name), TABLE, "of each test")

    def _of_code(self, source: Source, use: Use) -> Iterator[tuple[Node, float, str]]:
        """Yield what a name of a Python file uses."""
        is_test = source.path.startswith("tests/")
        match use:
            case "name", name:
                yield (source.path, name), WITHIN, ""
            case "ref", module, *names:
                if node := self.find(module, *names):
                    yield node, IMPORT, ""
            case "at", module, *names:
                if node := self.find(module, *names):
                    yield (node[0], ""), IMPORT, ""
            case "fixture", name:
                if node := self._fixture(source, name):
                    yield node, IMPORT, ""
            case "stage", name:
                yield from ((node, IMPORT, f"stage {name}") for node in self.keys.get(name, ()))
            case "worker", module:
                if node := self.find(f"{module}.worker"):
                    yield node, IMPORT, "its worker"
            case "words", *words:
                yield from self._of_words(words)
                for word in words if source.starts or self._starts_by_helper(source.path) else ():
                    if word in self.commands:
                        yield self.commands[word], KEY, f"starts `cloze {word}`"
            case _:
                yield from self._of_string(source.path, use, IMPORT if is_test else TABLE)

    def _of_text(self, path: str, use: Use) -> Iterator[tuple[Node, float, str]]:
        """Yield what a configuration or a script uses."""
        match use:
            case "command", word:
                if word in self.commands:
                    yield self.commands[word], TABLE, f"names `cloze {word}`"
            case "base", word:
                if base := self._presets.get(PurePosixPath(word).stem):
                    yield (base, "*"), IMPORT, "extends"
            case "words", *words:
                yield from ((node, TABLE, why) for node, _, why in self._of_words(words))
            case _:
                for node, _, why in self._of_string(path, use, TABLE):
                    yield node, TABLE, why

    def _of_words(self, words: Iterable[str]) -> Iterator[tuple[Node, float, str]]:
        for word in words:
            for node in self.keys.get(word, ()):
                yield node, KEY, f"by its key {word!r}"
            if preset := self._presets.get(word):
                yield (preset, "*"), KEY, f"by its name {word!r}"

    def _of_string(self, path: str, use: Use, cost: float) -> Iterator[tuple[Node, float, str]]:
        match use:
            case "from", module, name:
                if node := self.find(module, name):
                    yield node, cost, "by name"
            case "dotted", dotted:
                yield from ((node, cost, "by name") for node in self.named(dotted))
            case "path", text, *parts:
                if (
                    text.startswith(".")
                    and (beside := path.removesuffix(".py") + text) in self.data
                ):
                    yield (beside, "*"), KEY, "beside it"  # Path(__file__).with_suffix(…)
                found = list(self._files_named(path, text, bool(parts)))
                for part in parts if not found else ():
                    found += self._files_named(path, part, is_place=False)
                for name, far in found:
                    yield (name, "*"), far, f"by its path {text!r}"

    @functools.cache  # noqa: B019
    def _starts_by_helper(self, path: str) -> bool:
        """Return whether a test gets what starts the program from another file."""
        modules = {module for module, _ in self.sources[path].imports.values()}
        helpers = [self.paths.get(module, "") for module in modules]
        helpers += [f"{folder}/conftest.py" for folder in folders_above(path)]
        return any(name in self.sources and self.sources[name].starts for name in helpers)

    def _fixture(self, source: Source, name: str) -> Node | None:
        """Return the fixture of this name that a test in the file would get."""
        for one in (
            source,
            *(self.sources.get(f"{f}/conftest.py") for f in folders_above(source.path)),
        ):
            if one and (name in one.uses or name in one.imports):
                return (one.path, name)
        return None

    def _files_named(self, path: str, text: str, is_place: bool) -> Iterator[tuple[str, float]]:
        """Yield the files that a text in a file names, as path or pattern, and how far that is."""
        for folder in ("", *folders_above(path)):
            yield from self._files_at(
                f"{folder}/{text}" if folder else text, bool(folder), is_place
            )

    @functools.cache  # noqa: B019
    def _files_at(self, name: str, is_below: bool, is_place: bool) -> list[tuple[str, float]]:
        """Return the files at a path from the root.

        Args:
            is_below: whether it is a guess, of a folder above who names it.
            is_place: whether it is a path of code, such as `ROOT / "infra"`, which has data below.
        """
        if name in self.files:
            return [(name, KEY)]
        if name in self._folders:
            return [(file, KEY) for file in self._folders[name]]
        if is_below:
            return []
        if re.fullmatch(
            r"[\w./-]*\*[\w./*-]*\.\w+", name
        ):  # `*.md` is for the repository's root alone
            matches = re.compile(fnmatch.translate(name.replace("**/", ""))).match
            files = [file for file in self.data if "/" in name or "/" not in file]
            return [(file, TABLE) for file in files if matches(file)]
        return [(file, TABLE) for file in self._below.get(name, ())] if is_place else []


def _data_folders(data: Iterable[str], code: Iterable[str]) -> dict[str, list[str]]:
    """Return the data files below each folder without code, such as `templates`."""
    of_code = {str(folder) for name in code for folder in PurePosixPath(name).parents}
    found: dict[str, list[str]] = defaultdict(list)
    for name in data:
        for folder in map(str, PurePosixPath(name).parents):
            if folder not in of_code:
                found[folder].append(name)
    return found
