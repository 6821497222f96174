"""Which tests reach what: a repository of a few files, and this one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.tools import facts, reach
from tests.tools.import_graph import ImportGraph
from tests.tools.source_file import Source, read_source

FILES = {
    "core/__init__.py": "from cloze.core.leaf import shown\n",
    "core/leaf.py": "def shown():\n    return 1\n\n\ndef other():\n    return 2\n",
    "core/late.py": "def work():\n    from cloze.core import leaf\n\n    return leaf.shown()\n",
    "core/table.py": 'READERS = {"books": "cloze.core.leaf:other"}\nPICKED = READERS["books"]\n',
    "flows/cli.py": (
        'COMMANDS = {"Run": {"run": "Run it."}}\nMODULES = {"runs": "run"}\n\n\n'
        "def entry():\n    pass\n"
    ),
    "flows/commands/runs.py": (
        "from cloze.core import late\n\n\ndef run():\n    late.work()\n\n\ndef quiet():\n    pass\n"
    ),
    "flows/page.py": (
        "from pathlib import Path\n\n\ndef page():\n"
        '    return Path(__file__).parent / "templates" / "page.html"\n'
    ),
    "flows/templates/page.html": "<p>",
    "tests/conftest.py": (
        "import pytest\nfrom cloze.core.leaf import other, shown\n\nROOT = 1\n\n\n@pytest.fixture\n"
        "def one():\n    return shown()\n\n\n@pytest.fixture\ndef two():\n    return other()\n"
    ),
    "tests/helpers.py": "from cloze.core import leaf\n\n\ndef help():\n    return leaf.other()\n",
    "tests/test_direct.py": "from cloze.core.leaf import shown\n\n\ndef test():\n    shown()\n",
    "tests/test_other.py": "from tests.helpers import help\n\n\ndef test():\n    help()\n",
    "tests/test_reexport.py": "from cloze.core import shown\n\n\ndef test():\n    shown()\n",
    "tests/test_late.py": "from cloze.core.late import work\n\n\ndef test():\n    work()\n",
    "tests/test_key.py": 'def test():\n    assert {"kind": "books"}\n',
    "tests/test_name.py": 'SCRIPT = """\nfrom cloze.core.late import work\n"""\n',
    "tests/test_module.py": 'COMMAND = ["-m", "cloze.core.leaf"]\n',
    "tests/test_program.py": 'ENTRY = "entry()"\n\n\ndef test():\n    assert [ENTRY, "run"]\n',
    "tests/test_called.py": (
        'from cloze.flows import cli\n\n\ndef test():\n    cli.main(["run", "toy.yaml"])\n'
    ),
    "tests/helped.py": 'ENTRY = "entry()"\n\n\ndef called(*words):\n    assert words\n',
    "tests/test_by_helper.py": (
        'from tests.helped import called\n\n\ndef test():\n    called("run")\n'
    ),
    "tests/test_fixture.py": "def test(one):\n    assert one\n",
    "tests/test_other_fixture.py": "def test(two):\n    assert two\n",
    "tests/test_page.py": "from cloze.flows.page import page\n\n\ndef test():\n    page()\n",
    "pyproject.toml": '[project.scripts]\ncloze = "cloze.flows.cli:entry"\n',
    "prefect.yaml": "entrypoint: cloze.flows.commands.runs.run\n",
    "flows/presets/first.yaml": "corpus: {kind: books}\n",
    "flows/presets/second.yaml": "extends: first.yaml\n",
    "docs/how-to/page.md": "# A page\n",
    "docs/other.md": "# Another\n",
    "infra/stack.py": "def up():\n    pass\n",
    "infra/compose.yaml": "image: x\n",
    "infra/monitoring/alerts.yml": "alert: y\n",
    "infra/images/start.sh": "exec python infra/stack.py\n",
    "infra/проба.conf": "z\n",
    "tests/test_entry.py": 'from pathlib import Path\n\nTEXT = Path("pyproject.toml")\n',
    "tests/test_deployed.py": 'from tests.conftest import ROOT\n\nTEXT = ROOT / "prefect.yaml"\n',
    "tests/test_preset.py": 'def test():\n    assert ["second"]\n',
    "tests/test_doc.py": (
        'from pathlib import Path\n\nPAGE = Path(__file__).parents[1] / "docs" / "how-to" / "page.md"\n'
    ),
    "tests/test_docs.py": 'PAGES = "docs/**/*.md"\n',
    "tests/test_infra.py": (
        'from tests.conftest import ROOT\n\nINFRA = ROOT / "infra"\n\n\ndef test():\n'
        '    (INFRA / "compose.yaml").read_text()\n'
    ),
    "tests/test_script.py": (
        "from tests.conftest import ROOT\n\n\ndef test():\n"
        '    assert ROOT / "infra" / "images" / "start.sh"\n'
    ),
    "tests/test_nothing.py": '"""Of cloze.core.leaf it has the name alone."""\n\n\ndef test():\n    pass\n',
}


@pytest.fixture
def graph(tmp_path: Path) -> ImportGraph:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return ImportGraph(tmp_path, FILES)


def reached(graph: ImportGraph, changed: Mapping[str, list[range]]) -> list[str]:
    """Names of the test files that reach a change, nearest first."""
    seconds = dict.fromkeys(graph.tests(), 1.0)
    found = reach.reached_tests(graph, reach.start_nodes(graph, changed), seconds)
    return [Path(test.path).stem.removeprefix("test_") for test in found]


def test_each_way_to_a_function_is_found_and_no_other(graph: ImportGraph) -> None:
    by_lines = reach.start_nodes(graph, {"core/leaf.py": [range(1, 3)]})
    shown = {node: distance for node, distance in by_lines.items() if node[1] == "shown"}
    assert shown == {("core/leaf.py", "shown"): 0.0}
    tests = reach.reached_tests(graph, shown, dict.fromkeys(graph.tests(), 1.0))
    assert {test.path for test in tests} == {
        f"tests/test_{name}.py"
        for name in (
            *("direct", "reexport", "late", "name", "module", "program", "fixture"),
            *("called", "by_helper"),
            "deployed",  # by an entry point of prefect.yaml
        )
    }
    assert tests[0].path == "tests/test_direct.py"
    chains = {test.path: test.chain for test in tests}
    assert "starts `cloze run` → flows/commands/runs.py" in chains["tests/test_program.py"]
    assert "core/late.py (work) → core/leaf.py (shown)" in chains["tests/test_late.py"]


def test_a_file_is_all_of_its_names_and_the_changed_ones_come_first(graph: ImportGraph) -> None:
    whole = reached(graph, {"core/leaf.py": []})
    assert {"other", "key", "other_fixture", "direct"} < set(whole)
    assert "nothing" not in whole
    first = reached(graph, {"core/leaf.py": [range(5, 7)]})
    assert set(first) == set(whole)
    assert first.index("other_fixture") < first.index("direct")


def test_a_data_file_reaches_the_tests_of_what_opens_it(graph: ImportGraph) -> None:
    assert reached(graph, {"flows/templates/page.html": []}) == ["page"]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("pyproject.toml", ["entry"]),
        ("prefect.yaml", ["deployed"]),
        ("flows/presets/first.yaml", ["preset"]),
        ("docs/how-to/page.md", ["doc", "docs"]),
        ("docs/other.md", ["docs"]),
        ("infra/compose.yaml", ["infra"]),
        ("infra/monitoring/alerts.yml", ["infra"]),
        ("infra/проба.conf", ["infra"]),
        ("infra/images/start.sh", ["script", "infra"]),
        ("infra/stack.py", ["script", "infra"]),
    ],
)
def test_configurations_scripts_and_documents_reach_who_reads_them(
    graph: ImportGraph, changed: str, tests: list[str]
) -> None:
    assert reached(graph, {changed: []}) == tests


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("flows/commands/runs.py", {"program", "deployed"}),  # an entry point of a deployment
        ("flows/cli.py", {"entry"}),  # one of the package
        ("core/leaf.py", {"preset"}),  # the reader that a preset's base names
    ],
)
def test_code_reaches_the_tests_of_the_files_that_name_it(
    graph: ImportGraph, changed: str, tests: set[str]
) -> None:
    assert tests <= set(reached(graph, {changed: []}))


def test_facts_are_kept_until_their_file_changes(
    tmp_path: Path, graph: ImportGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, read = tmp_path / "build" / "facts", list[str]()

    def counted(path: str, text: str) -> Source:
        read.append(path)
        return read_source(path, text)

    monkeypatch.setattr(facts, "read_source", counted)
    for change, expected in ((None, set(graph.sources)), (None, set()), ("more", {"core/late.py"})):
        if change:
            late = tmp_path / "core/late.py"
            late.write_text(late.read_text() + "\n\ndef more():\n    pass\n")
        read.clear()
        found = ImportGraph(tmp_path, FILES, cache)
        assert set(read) == expected
        assert found.users.keys() >= graph.users.keys()
        assert ("more" in found.sources["core/late.py"].symbols) == bool(change)
    cache.write_bytes(cache.read_bytes()[:99])
    assert ImportGraph(tmp_path, FILES, cache).sources == found.sources


def test_names_in_any_script_are_listed_and_seen_to_change(tmp_path: Path) -> None:
    for words in (
        ["init", "-q", "-b", "main"],
        ["config", "user.email", "a"],
        ["config", "user.name", "a"],
    ):
        reach._git(tmp_path, *words)
    (tmp_path / "Мельница.md").write_text("one\n")
    (tmp_path / "new.md").write_text("one\n")
    reach._git(tmp_path, "add", "Мельница.md")
    reach._git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "Мельница.md").write_text("two\n")
    assert sorted(reach.repository_files(tmp_path)) == ["new.md", "Мельница.md"]
    assert sorted(reach.changed_lines(tmp_path)) == ["new.md", "Мельница.md"]


def test_a_test_and_its_helper_reach_themselves(graph: ImportGraph) -> None:
    assert reached(graph, {"tests/test_nothing.py": []}) == ["nothing"]
    assert reached(graph, {"tests/helpers.py": []}) == ["other"]
    assert reached(graph, {"flows/commands/runs.py": [range(8, 10)]}) == [
        *("by_helper", "called", "program", "deployed")
    ]


def test_the_budget_takes_the_nearest_and_counts_the_rest() -> None:
    rows = ((0, 5), (1, 90), (2, 4), (reach.FAR + 1, 0))
    tests = [reach.Reached(f"t{n}", *row, "") for n, row in enumerate(rows)]
    chosen, left = reach.choose(tests, 10)
    assert [test.path for test in chosen] == ["t0", "t2"]
    assert [test.path for test in left] == ["t1", "t3"]


def test_main_job_names_tests_that_exist() -> None:
    assert len(reach.MAIN_JOB) == 10
    for name in reach.MAIN_JOB:
        path, _, function = name.partition("::")
        assert f"def {function.partition('[')[0]}(" in (REPOSITORY / path).read_text(), name


def test_this_repository_is_read_with_the_commands_of_its_labs() -> None:
    graph = reach.read_graph(REPOSITORY)
    assert graph.commands["run"][0].startswith("flows/commands/")
    for lab in sorted({path.parts[-2] for path in REPOSITORY.glob("labs/*/plugin.py")}):
        declared = (REPOSITORY / f"labs/{lab}/plugin.py").read_text()
        of_lab = [
            name for name, node in graph.commands.items() if node[0].startswith(f"labs/{lab}/")
        ]
        assert bool(of_lab) == ('"commands": {' in declared), lab
