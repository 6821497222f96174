"""Source `docstrings`: docstrings of installed Python packages, a source of English prose.

The path is a comma-separated list of packages (`numpy,torch`; `stdlib` is the standard library) or
a directory. Files are parsed, never imported. A document is a module: its docstrings, and the
strings that document C extensions (`add_newdoc`, `add_docstr`). Only prose is kept
(prose.py). Of paragraphs repeated in a package the first is kept.
A package is one slice, so this depends only on the files of the slice.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import posixpath
import re
import sysconfig
import warnings
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import Documents, FileReader, Files, ReadCounters, Slice

STDLIB = "stdlib"

_OTHERS_DIRECTORIES = frozenset("site-packages dist-packages __pycache__ node_modules".split())
_SKIPPED_DIRECTORIES = frozenset("test tests testing _testing".split()) | _OTHERS_DIRECTORIES
_SKIPPED_FILES = re.compile(r"(?:conftest|test_.*|.*_test|.*_tests|.*_pb2|.*_pb2_grpc)\.py")
_SKIPPED_STDLIB = frozenset({"idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data"})
_DOCUMENTING_CALLS = frozenset(
    """
    add_newdoc add_newdoc_for_scalar_type add_docstr _add_docstr add_docstr_all _add_docstr_all
    """.split()
)
_DOCUMENTING_NAME = re.compile(r"doc(?:s|string|strings)?(?:_|$)", re.IGNORECASE)
_MOST_SOURCE_BYTES = 8 << 20  # larger files are generated tables


class DocstringsReader(FileReader):
    """Reader of documents `docstrings/<package>/<module>`."""

    kind = "docstrings"
    takes_names = True
    patterns = ("*.py",)
    clean_shares = (("", 0.1),)

    def list_slices(self, path: str) -> tuple[list[Slice], Files]:
        """Return one slice per package, and the files of packages that are passed over.

        Raises:
            DataError: a package is not installed here.
        """
        is_directory = "/" in path or path.startswith(".")
        if is_directory:
            if not storage.is_local(path):
                raise DataError(
                    f"{path} is in a store, but source docstrings reads local directories only; "
                    f"copy it to a disk"
                )
            if not storage.is_dir(path):
                raise DataError(
                    f"{path} is no directory of Python files; check the path of source docstrings"
                )
            roots = [(posixpath.basename(path.rstrip("/")), path)]
        else:
            names = [name.strip() for name in path.split(",") if name.strip()]
            if not names:
                raise DataError("source docstrings names no package; write docstrings=numpy,torch")
            roots = [_locate(name) for name in dict.fromkeys(names)]
        slices, passed_over = [], Files()
        for name, root in roots:
            file_slice = Slice(kind=self.kind, name=name, path=root, size=0)
            files = self.files(file_slice)
            if not files:
                raise DataError(
                    f"package {name} ({root}) contains no Python file; remove it from source "
                    f"docstrings"
                )
            size = sum(Path(file).stat().st_size for _, file in files)
            slices.append(replace(file_slice, size=size))
            if is_directory:
                others = sorted(set(storage.list_files(root)) - dict(files).keys())
                passed_over += [(name, storage.join(root, name)) for name in others]
            else:  # of an installed package no module is hidden, and other files are no text
                modules = {str(file) for file in _python_files(Path(root), _OTHERS_DIRECTORIES)}
                others = sorted(modules - set(dict(files).values()))
                passed_over += [(f"{Path(path).stem.strip('_')}.py", path) for path in others]
        return slices, passed_over

    def files(self, file_slice: Slice) -> list[tuple[str, str]]:
        """Return the files of modules, without tests and generated code, by relative name."""
        if Path(file_slice.path).is_file():
            return [(posixpath.basename(file_slice.path), file_slice.path)]
        skipped_names = _SKIPPED_DIRECTORIES
        if file_slice.name == STDLIB:
            skipped_names |= _SKIPPED_STDLIB
        return sorted(
            (file.relative_to(file_slice.path).as_posix(), str(file))
            for file in _python_files(Path(file_slice.path), skipped_names)
            if not _SKIPPED_FILES.fullmatch(file.name)
        )

    def read(self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> Documents:
        """Yield a document per module with docstrings; quarantine files that do not parse."""
        from cloze.labs.docstrings.prose import prose

        seen: set[str] = set()
        for name, path in self.files(file_slice):
            tree = _parse(name, path, tally)
            if tree is None:
                continue
            strings = list(dict.fromkeys(_strings(tree)))
            if not strings:
                continue
            tally.read_texts(strings)
            paragraphs = []
            for text in strings:
                for paragraph in prose(text):
                    if paragraph in seen:
                        tally.drop_lines("repeated_paragraph")
                    else:
                        seen.add(paragraph)
                        paragraphs.append(paragraph)
            module = _module(file_slice.name, name)
            yield Document(
                id=f"{self.kind}/{file_slice.name}/{module}",
                source=self.kind,
                title=module,
                paragraphs=tuple(paragraphs),
            )


def _python_files(root: Path, skipped_names: Collection[str]) -> Iterator[Path]:
    """Yield the Python files below `root`, outside of hidden directories and those of the names."""
    if root.is_file():
        yield root
        return
    for entry in root.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            if entry.name not in skipped_names and not entry.name.startswith((".", "config-")):
                yield from _python_files(entry, skipped_names)
        elif entry.suffix == ".py":
            yield entry


def _locate(name: str) -> tuple[str, str]:
    """Return (import name, path) of an installed package, without importing it."""
    if name == STDLIB:
        return STDLIB, sysconfig.get_path("stdlib")
    package, *submodules = name.replace("-", "_").split(".")
    location = _find(package)
    if location is None:
        # The distribution may have another name than the package: scikit-learn, beautifulsoup4.
        submodules = []
        for candidate in sorted(_packages_of(name)):
            if (location := _find(candidate)) is not None:
                package = candidate
                break
    if location is None:
        raise DataError(
            f"package {name!r} is not installed here; install it, or remove it from source "
            f"docstrings"
        )
    root = Path(location)
    for component in submodules:
        root = root / component if (root / component).is_dir() else root / f"{component}.py"
    if not root.exists():
        raise DataError(
            f"package {package!r} has no module {'.'.join(submodules)!r} that can be read; "
            f"check the path of source docstrings"
        )
    return ".".join([package, *submodules]), str(root)


def _packages_of(distribution: str) -> list[str]:
    """Return the top-level packages of an installed distribution."""
    normalized = _normalized(distribution)
    return [
        package
        for package, owners in importlib.metadata.packages_distributions().items()
        if not package.startswith("_") and normalized in map(_normalized, owners)
    ]


def _normalized(distribution: str) -> str:
    """Normalize a distribution name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _find(name: str) -> str | None:
    """Return the directory or file of a top-level package."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return next(iter(spec.submodule_search_locations))
    return spec.origin if spec.origin and spec.origin.endswith(".py") else None


def _module(package: str, name: str) -> str:
    """Return the full name of a module; a single-file package is named by itself."""
    components = name.removesuffix(".py").split("/")
    if components[-1] == "__init__" or components == package.split(".")[-1:]:
        components.pop()
    return ".".join(components if package == STDLIB and components else [package, *components])


def _parse(name: str, path: str, tally: ReadCounters) -> ast.Module | None:
    data = Path(path).read_bytes()
    if len(data) > _MOST_SOURCE_BYTES:
        tally.quarantine(
            "too_large",
            f"a source file of {len(data):,} bytes is taken for generated code",
            inner=name,
        )
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ignore invalid escapes
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        location = (
            f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        )
        tally.quarantine(
            "syntax_error", f"the file{location} is no Python that this version reads", inner=name
        )
        return None


def _strings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of the module and other documenting strings, in order."""
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text
        elif isinstance(node, ast.Expr):
            call = node.value
            if isinstance(call, ast.Call) and _last_name(call.func) in _DOCUMENTING_CALLS:
                yield from _constants([*call.args, *(keyword.value for keyword in call.keywords)])
        elif isinstance(node, ast.Assign) and any(
            _DOCUMENTING_NAME.search(_last_name(target)) for target in node.targets
        ):
            yield from _constants([node.value])
        # The field pushed last is popped first.
        for field in ("finalbody", "orelse", "handlers", "cases", "body"):
            children = getattr(node, field, ())
            if isinstance(children, list):
                pending.extend(reversed(children))


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.id if isinstance(node, ast.Name) else ""


def _constants(nodes: list[Any]) -> Iterator[str]:
    """Yield the multi-line strings in the expressions."""
    for node in nodes:
        for descendant in ast.walk(node):
            if isinstance(descendant, ast.Constant):
                text = descendant.value
                if isinstance(text, str) and "\n" in text:
                    yield text


reader = DocstringsReader()
