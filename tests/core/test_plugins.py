"""Tables and the rows of plug-ins: found, in order, broken, twice, missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloze.core import plugins
from cloze.core.errors import UsageError
from cloze.core.options import known
from cloze.core.plugins import Row, Table
from tests.installing import declared, install
from tests.installing import site as site

OWN = {"dumps": "json:dumps", "module": "json", "record": 7, "end": "json:loads"}
ROWS = '{"functions": {"%s": Row("%s:VALUE"%s)}}'


def table(**settings: Any) -> Table[Any]:
    return Table("functions", "function", OWN, **settings)


def test_a_row_leads_to_its_object_or_module_or_is_a_record() -> None:
    assert table().find("dumps") is json.dumps
    assert table()["module"] is json
    assert table()["record"] == 7
    assert table().reference("dumps") == "json:dumps"
    assert list(table().loaded()) == list(OWN)


def test_an_unknown_row_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"function \('dump'\) is unknown; did you mean 'dumps'\?"):
        table().find("dump")
    with pytest.raises(KeyError):
        table()["dump"]
    assert table().get("dump") is None


@pytest.mark.parametrize(
    ("before", "last", "order"),
    [
        ("", "", ["dumps", "module", "record", "end", "more"]),
        (', before="module"', "", ["dumps", "more", "module", "record", "end"]),
        ("", "end", ["dumps", "module", "record", "more", "end"]),
        (', before="dumps"', "end", ["more", "dumps", "module", "record", "end"]),
        (', before="nowhere"', "end", ["dumps", "module", "record", "more", "end"]),
    ],
)
def test_a_row_of_a_package_has_its_place(
    site: Path, before: str, last: str, order: list[str]
) -> None:
    install(site, "more-functions", declared("more", ROWS % ("more", "more_functions.it", before)),
            {"it": "VALUE = 8"})  # fmt: skip
    made = table(last=last)
    assert list(made) == order
    assert made.find("more") == 8
    assert str(made.owners["more"]) == "plug-in more (more-functions 1.0)"
    assert [fault for fault in plugins.faults if "nowhere" in fault] == (
        list(plugins.faults) if "nowhere" in before else []
    )


BROKEN = {
    "a declaration that cannot be imported": ("import nowhere", {}, "No module named 'nowhere'"),
    "a declaration with a fault": ("def (", {}, "SyntaxError"),
    "something else": ("PLUGIN = 3", {}, "is no cloze.core.plugins.Plugin"),
    "a row without a module": (declared("bad", ROWS % ("bad", "bad.it", "")), {}, "bad.it"),
    "a row that asks an extra's package for what it has not": (
        declared("bad", ROWS % ("bad", "bad.it", "")),
        {"it": "import tokenizers.nowhere"},
        "No module named 'tokenizers.nowhere'",
    ),
    "a row that fails": (
        declared("bad", ROWS % ("bad", "bad.it", "")),
        {"it": "1 / 0"},
        "ZeroDivisionError: division by zero",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_package_loses_its_own_rows_only(site: Path, kind: str) -> None:
    declaration, modules, fault = BROKEN[kind]
    install(site, "bad", declaration, modules)
    install(site, "good", declared("good", ROWS % ("good", "good.it", "")), {"it": "VALUE = 9"})
    made = table()
    assert set(made.loaded()) == {*OWN, "good"}
    assert made.find("good") == 9
    (told,) = plugins.faults
    assert fault in told
    assert "bad 1.0" in told
    if "bad" in made:
        with pytest.raises(
            UsageError, match=r"'bad' of plug-in bad \(bad 1.0\) cannot be imported"
        ):
            made.find("bad")


@pytest.mark.parametrize(
    ("module", "extra"), [("torch", "train"), ("mlflow", "flows"), ("apache_beam", "data")]
)
def test_a_row_that_needs_an_extra_of_cloze_is_no_fault_of_its_package(
    site: Path, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host may have one extra and not another: nothing is to be updated or uninstalled."""
    row = {"it": f"import {module}.nn\nVALUE = 1"}
    install(site, "bad", declared("bad", ROWS % ("bad", "bad.it", "")), row)
    monkeypatch.setitem(sys.modules, module, None)
    made = table()
    with pytest.raises(UsageError, match=rf"{module} is not installed.*\[{extra}\]") as told:
        made.find("bad")
    assert "uninstall" not in str(told.value)
    assert set(made.loaded()) == set(OWN)
    assert not plugins.faults


def test_a_name_given_twice_is_said_and_the_first_one_stays(site: Path) -> None:
    install(site, "one", declared("one", ROWS % ("dumps", "one.it", "")), {"it": "VALUE = 1"})
    install(site, "three", declared("three", ROWS % ("new", "three.it", "")), {"it": "VALUE = 3"})
    install(site, "two", declared("two", ROWS % ("new", "two.it", "")), {"it": "VALUE = 2"})
    install(site, "zwei", declared("two"), {})
    made = table()
    assert made["dumps"] is json.dumps
    assert made["new"] == 3
    assert list(plugins.faults) == [
        "plug-in two (zwei 1.0) has the name of plug-in two (two 1.0); uninstall one of them",
        "function 'dumps' of plug-in one (one 1.0) is left out: Cloze itself has that name",
        "function 'new' of plug-in two (two 1.0) is left out: plug-in three (three 1.0) has that name",
    ]


def test_the_first_of_two_versions_on_the_path_counts(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "same", declared("same", ROWS % ("new", "same.it", "")), {"it": "VALUE = 1"})
    install(tmp_path / "older", "same", declared("same"), {}, version="0.1")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "older"), str(tmp_path / "none")])
    assert str(table().owners["new"]) == "plug-in same (same 1.0)"
    assert not plugins.faults


def test_a_row_that_an_artifact_named_is_told_with_its_package(site: Path) -> None:
    row = {"package": "cloze-stars", "version": "0.3", "rows": ["functions/stars"]}
    plugins.remember({"stars": row})
    sentence = "it is of cloze-stars 0.3, which is not installed; pip install cloze-stars"
    with pytest.raises(UsageError) as told:
        table().find("stars")
    assert str(told.value) == f"function ('stars') is unknown; {sentence}"
    with pytest.raises(ValueError, match=sentence):
        known(table(), "no such function").func("stars")  # type: ignore[call-arg]


def test_own_names_are_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> tuple[()]:
        raise AssertionError("searched")

    monkeypatch.setattr(plugins, "installed", search)
    made = table()
    assert made.find("dumps") is json.dumps
    assert "record" in made


def test_declarations_import_nothing_but_the_door() -> None:
    """All of them are read at each start of the command."""
    code = (
        "import sys; import cloze.core.plugins, cloze.core.errors; before = set(sys.modules)\n"
        "from cloze.core import plugins; found = plugins.installed()\n"
        "print([name for name in set(sys.modules) - before if name.startswith('cloze.')])\n"
        "assert found and not plugins.faults, plugins.faults"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in eval(run.stdout):
        assert name == "cloze.labs" or name.count(".") == 2 or name.endswith(".plugin"), name


def test_a_row_can_be_replaced_and_removed() -> None:
    made = table()
    made["here"] = Row("json:loads")
    made["dumps"] = "json:loads"
    del made["record"]
    assert made["dumps"] is json.loads
    assert "record" not in made


FIELDS = [
    ({"task": "stars"}, ["functions/stars"]),
    ({"sources": [{"kind": "x", "task": "stars"}]}, ["functions/stars"]),
    ({"objectives": ["mlm", "stars"]}, ["functions/stars"]),
    ({"objectives": {"stars": {"weight": 2}}}, ["functions/stars"]),
    ({"model": {"task": "stars", "x": {"y": [{"task": "moons"}]}}}, ["functions/moons", "functions/stars"]),
    ({"path": "stars", "task": "dumps"}, []),
    ({"task": None, "objectives": 3, "x": []}, []),
]  # fmt: skip


@pytest.mark.parametrize(("config", "rows"), FIELDS)
def test_rows_that_a_config_names_are_found(
    site: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], rows: list[str]
) -> None:
    monkeypatch.setattr(plugins, "_tables", [])
    more = '{"functions": {"stars": Row("sky.it:VALUE", version=4), "moons": Row("sky.it:VALUE")}}'
    install(site, "sky", declared("sky", more), {"it": "VALUE = 1"}, version="0.3")
    table(fields=("task", "objectives"))
    found = plugins.used("", config)
    assert sorted(found) == rows
    versions = {"functions/stars": ["sky", 4], "functions/moons": ["sky", 1]}
    expected = {"plugins": {row: versions[row] for row in rows}} if rows else {}
    assert plugins.row_versions(found) == expected
    told = {"sky": {"package": "sky", "version": "0.3", "rows": rows}} if rows else {}
    assert plugins.described(found, {}) == told
    other = {"package": "other", "version": "2", "rows": ["functions/a"]}
    old = {"package": "sky", "version": "0.2", "rows": ["functions/older"]}
    both = plugins.described(found, {"other": other, "sky": old})
    assert both["other"] == other
    assert both["sky"]["rows"] == sorted([*rows, "functions/older"])


def test_rows_of_labs_are_named_and_enter_no_fingerprint() -> None:
    from cloze.pipeline.corpus.config import CorpusConfig

    config = CorpusConfig.model_validate({"sources": [{"kind": "babylm", "path": "x"}]})
    rows = config.plugin_rows()
    assert list(rows) == ["readers/babylm"]
    assert plugins.row_versions(rows) == {}
    about = plugins.described(rows, {})["records"]
    assert about["package"] == "cloze-pretraining-base"
    assert about["version"]


def test_hosts_compare_the_versions_of_packages(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloze.core import identity

    monkeypatch.setattr(identity, "installed", plugins.installed)
    alone = identity.identity("core")
    plugins.installed.cache_clear()
    install(site, "cloze-sky", declared("sky"), {}, version="0.3")
    assert identity.difference(identity.identity("core"), alone) == ("cloze-sky", "0.3", "none")
