"""Plug-ins: packages that add rows to Cloze's tables; docs/how-to/plugin.md builds one.

A package declares the entry point `NAME = "package.plugin:PLUGIN"` of the group `cloze.plugins`.
The ones that ship with Cloze are listed in `labs/__init__.py`. A declaration imports this module
alone, because all of them are read at every start. A broken plug-in loses its own rows only, and
`cloze doctor` says why.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar, cast

from cloze.core.errors import UsageError, describe_missing_package, did_you_mean, missing_extra

STAGE_TABLES = ("stages", "tools")  # whose rows are stages
GROUP = "cloze.plugins"  # of entry points
SHIPPED, PACKAGE = "cloze.labs:PLUGINS", "cloze-pretraining-base"
T = TypeVar("T")


class PluginError(UsageError):
    """A row needs a package that is not installed, or is broken."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table."""

    reference: str  # `module:ATTRIBUTE`, or a whole `module`, imported on first use
    # line of a command in `cloze --help`; of a launcher, the help of its options `NAME_options`
    help: str = ""
    command: bool = True  # whether a stage has a command of its name
    # the row behind it, where the order counts (stages, steps); default: the table's end
    before: str = ""
    # raised when the same input gives other output; it is part of the fingerprint of what is made
    # with the row
    version: int = 1
    # of a stage, what its artifacts replace as an input: those of a stage (`corpus`), or one input
    # of a stage (`finetune.checkpoint`)
    stands_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plugin:
    """What a package adds."""

    name: str
    summary: str  # one line for `cloze doctor` and `cloze NAME --help`
    # rows by name, by table; `docs/how-to/plugin.md` lists the tables
    rows: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)
    presets: str = ""  # folder of presets beside the declaration


@dataclass(frozen=True, slots=True)
class Installed:
    """A plug-in with the package that has it; `version` is empty for those of Cloze itself.

    Tests cover those of Cloze itself together with its stages, whose versions count for them.
    """

    plugin: Plugin
    package: str
    version: str
    directory: Path

    def __str__(self) -> str:
        return f"plug-in {self.plugin.name} ({f'{self.package} {self.version}'.strip()})"


# What is wrong with plug-ins, in sentences; the packages of rows that manifests named; all tables.
faults: dict[str, None] = {}
_named: dict[str, tuple[str, str]] = {}
_tables: list[Table[Any]] = []


@functools.cache
def installed() -> tuple[Installed, ...]:
    """Return the plug-ins that can be imported: Cloze's own, then others by package."""
    found: dict[str, Installed] = {}
    own = [("", PACKAGE, "", reference) for reference in resolve_name(SHIPPED)]
    for name, package, version, reference in [*own, *sorted(set(_entry_points()))]:
        label = f"plug-in {name or reference} ({package} {version})"
        try:
            plugin = resolve_name(reference)
            if not isinstance(plugin, Plugin):
                raise TypeError(f"{reference} is no cloze.core.plugins.Plugin")
            file = sys.modules[reference.partition(":")[0]].__file__ or ""
        except Exception as error:
            faults[f"{label} cannot be imported: {type(error).__name__}: {error}"] = None
            continue
        here = Installed(plugin, package, version, Path(file).parent)
        if (first := found.setdefault(plugin.name, here)) is not here:
            faults[f"{here} has the name of {first}; uninstall one of them"] = None
    return tuple(found.values())


def _entry_points() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, package, version and reference; `importlib.metadata` takes .1 s for that."""
    seen: set[str] = set()
    for directory in sys.path:
        entries = os.listdir(directory or ".") if os.path.isdir(directory or ".") else []
        for entry in entries:
            package, _, version = entry.removesuffix(".dist-info").partition("-")
            if not entry.endswith(".dist-info") or package in seen:
                continue
            seen.add(package)  # the first one on the path is what Python imports
            try:
                text = Path(directory, entry, "entry_points.txt").read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            for line in text.partition(f"[{GROUP}]")[2].partition("\n[")[0].splitlines():
                name, separator, reference = (part.strip() for part in line.partition("="))
                if separator:
                    yield name, package.replace("_", "-"), version, reference


class Table(MutableMapping[str, T]):
    """A table of objects by name: Cloze's own rows, and those of plug-ins.

    A text is a reference, which is imported on first use. Own rows are found without a search for
    plug-ins.

    Args:
        kind: name of the table in `Plugin.rows`.
        what: what a row is, for messages, such as `task`.
        fields: config fields whose values are names of rows.
        last: row that stays the last one.
    """

    def __init__(
        self,
        kind: str,
        what: str,
        rows: Mapping[str, Any],
        fields: tuple[str, ...] = (),
        last: str = "",
    ) -> None:
        self.kind, self.what, self.fields, self._last = kind, what, fields, last
        _tables.append(self)
        self._rows: dict[str, Any] = dict(rows)
        self._owners: dict[str, Installed] = {}
        self._is_complete = False

    def _complete(self) -> dict[str, Any]:
        if not self._is_complete:
            self._is_complete = True
            for owner in installed():
                for name, row in owner.plugin.rows.get(self.kind, {}).items():
                    self._add(name, row, owner)
        return self._rows

    def _add(self, name: str, row: Row, owner: Installed) -> None:
        if name in self._rows:
            first = self._owners.get(name, "Cloze itself")
            faults[f"{self.what} {name!r} of {owner} is left out: {first} has that name"] = None
            return
        before = row.before or self._last
        if before and before not in self._rows:
            faults[f"{self.what} {name!r} of {owner} shall stand before {before!r}, which is no "
                   f"{self.what}; it stands last"] = None  # fmt: skip
            before = self._last
        self._owners[name], names = owner, list(self._rows)
        behind = names[names.index(before) :] if before else []
        self._rows[name] = row
        # A dict keeps the order of insertion: what stands behind is put in again.
        for other in behind:
            self._rows[other] = self._rows.pop(other)

    @property
    def owners(self) -> Mapping[str, Installed]:
        """The plug-ins of the rows that are not Cloze's own."""
        self._complete()
        return self._owners

    def __iter__(self) -> Iterator[str]:
        return iter(self._complete())

    def __len__(self) -> int:
        return len(self._complete())

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._complete()

    def __getitem__(self, name: str) -> T:
        row = self._rows[name] if name in self._rows else self._complete()[name]
        if not isinstance(row, Row):
            return cast("T", resolve_name(row) if isinstance(row, str) else row)
        try:
            return cast("T", resolve_name(row.reference))
        except Exception as error:
            if missing_extra(error):  # of Cloze: no fault of the package
                raise PluginError(describe_missing_package(cast("ImportError", error))) from error
            fault = (
                f"{self.what} {name!r} of {self._owners[name]} cannot be imported: "
                f"{type(error).__name__}: {error}"
            )
            faults[fault] = None
            raise PluginError(f"{fault}; update or uninstall that package") from error

    def __setitem__(self, name: str, row: Any) -> None:
        self._rows[name] = row

    def __delitem__(self, name: str) -> None:
        del self._rows[name]
        self._owners.pop(name, None)

    def row(self, name: str) -> Any:
        """Return the row itself: the reference of an own one, or a plug-in's `Row`."""
        return self._complete()[name]

    def reference(self, name: str) -> str:
        """Return the reference of a row, for another process."""
        row = self.row(name)
        return row.reference if isinstance(row, Row) else str(row)

    def loaded(self) -> dict[str, T]:
        """Import and return all rows but those of broken plug-ins."""
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except PluginError:
                continue
        return found

    def find(self, name: str) -> T:
        """Return a row.

        Raises:
            UsageError: there is no such row; the message has the nearest one, or the package that
                had it when an artifact was made.
        """
        if name not in self:
            kind = PluginError if f"{self.kind}/{name}" in _named else UsageError
            raise kind(f"{self.what} ({name!r}) is unknown; {hint(self, str(name))}")
        return self[name]


def hint(table: Any, name: str) -> str:
    """Return the end of the sentence that a name is not in a table."""
    if isinstance(table, Table) and (found := _named.get(f"{table.kind}/{name}")):
        package, version = found
        return f"it is of {package} {version}, which is not installed; pip install {package}"
    return did_you_mean(name, table)


def with_substitutes(kinds: Iterable[str], stage: str = "", role: str = "") -> tuple[str, ...]:
    """Return stages, and those of plug-ins whose artifacts stand for one of theirs.

    Args:
        stage: stage that reads them. Stages of its own plug-in are not added: it names what it
            takes, so a stage never stands for its own input.
    """
    found, wanted = list(kinds), {*kinds, f"{stage}.{role}"}
    for owner in installed():
        rows = owner.plugin.rows.get("stages", {})
        if stage not in rows:
            found += [name for name, row in rows.items() if wanted.intersection(row.stands_for)]
    return tuple(dict.fromkeys(found))


# Plug-ins in manifests and fingerprints.


def used(field: str, value: Any) -> dict[str, Installed]:
    """Return the plug-ins of the rows that a field and its nested fields name, by `table/row`."""
    found: dict[str, Installed] = {}
    if isinstance(value, Mapping):
        for name, item in value.items():
            found |= used(str(name), item)
    names = [value] if isinstance(value, str) else value
    for name in names if isinstance(names, (list, tuple, Mapping)) else ():
        for table in _tables:
            if field in table.fields and (owner := table.owners.get(str(name))):
                found[f"{table.kind}/{name}"] = owner
        if not isinstance(name, str):
            found |= used(field, name)
    return found


def owner_of(kinds: tuple[str, ...], name: str) -> dict[str, Installed]:
    """Return the plug-in of a row of one of the tables, by `table/row`."""
    tables = (table for table in _tables if table.kind in kinds)
    return {f"{t.kind}/{name}": t.owners[name] for t in tables if name in t.owners}


def is_stage(reference: str) -> bool:
    """Return whether an import path is that of a plug-in's stage."""
    rows = [found.plugin.rows.get(kind, {}) for found in installed() for kind in STAGE_TABLES]
    return any(row.reference == reference for named in rows for row in named.values())


def row_versions(rows: Mapping[str, Installed]) -> dict[str, Any]:
    """Return what enters a fingerprint: package and version of rows that are not Cloze's own."""
    # Of other packages alone: golden tests and stage versions cover Cloze's own rows.
    foreign = {
        key: [owner.package, owner.plugin.rows[kind][name].version]
        for key, owner in sorted(rows.items())
        for kind, _, name in [key.partition("/")]
        if owner.version
    }
    return {"plugins": foreign} if foreign else {}


def described(
    rows: Mapping[str, Installed], inherited: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the entry of a manifest: package, version and rows of each plug-in by its name.

    `inherited`: entries of the inputs' manifests.
    """
    found = {name: dict(about) for name, about in inherited.items()}
    for key, owner in sorted(rows.items()):
        before = found.get(owner.plugin.name, {}).get("rows", [])
        found[owner.plugin.name] = {
            "package": owner.package,
            "version": owner.version or own_version(),
            "rows": sorted({*before, key}),
        }
    return found


def own_version() -> str:
    """Return the version of Cloze that is installed; 0: none is."""
    from importlib import metadata

    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "0"


def remember(plugins: Mapping[str, Mapping[str, Any]]) -> None:
    """Remember the packages that a manifest names, for `hint`."""
    for plugin in plugins.values():
        _named.update(dict.fromkeys(plugin.get("rows", ()), (plugin["package"], plugin["version"])))
