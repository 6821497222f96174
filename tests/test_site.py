"""The generated pages of the documentation site."""

import html
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest

from cloze import Checkpoint
from cloze.core.options import field_docs
from cloze.flows.cli import cloze, command_names, main
from cloze.flows.graph.stages import TABLE
from cloze.model.families.hub_formats import exportable

HOOK = Path(__file__).parents[1] / "docs" / "reference_pages.py"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", HOOK)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_in_the_repository_is_what_the_program_says() -> None:
    """Its links work on a forge, and in a checkout that has built nothing."""
    done = subprocess.run([sys.executable, HOOK, "--check"], capture_output=True, text=True)
    assert (done.stderr.strip(), done.returncode) == ("", 0), "if it is meant: make recorded"


def test_every_public_name_is_on_the_page_of_python(pages: ModuleType) -> None:
    page = pages.filled((HOOK.parent / "reference" / "python.md").read_text(encoding="utf-8"))
    for name in (each for each in vars(Checkpoint) if not each.startswith("_")):
        assert f"### `Checkpoint.{name}`" in page
    assert "`device`: device to compute on" in page
    assert "'Literal" not in page


def test_the_config_page_has_every_stage_and_every_field(pages: ModuleType) -> None:
    sections = dict(
        re.findall(r"^## `([\w-]+)`\n(.*?)(?=^## |\Z)", pages.config_page(), re.M | re.S)
    )
    assert list(sections) == [*TABLE, "run", "night"]
    for name, stage in TABLE.items():
        config = stage.config
        for field in config.model_fields:
            row = re.search(rf"^\| `{field}` \|(.*)\|$", sections[name], re.M)
            assert row, f"{name}.{field}"
            described = row[1].rsplit(" | ", 1)[-1].strip()
            assert bool(described) == (field in field_docs(config)), f"{name}.{field}"


def test_the_commands_page_has_every_command(pages: ModuleType) -> None:
    page = pages.commands_page()
    assert re.findall(r"^### `cloze ([\w-]+)`$", page, re.M) == command_names()
    assert "--global-batch" in page


def test_code_of_the_generated_pages_is_what_is_typed(pages: ModuleType) -> None:
    """Markdown takes nothing within backquotes for an escape, not even in a table."""
    for page in (pages.config_page(), pages.commands_page()):
        code = re.findall(r"`([^`\n]*)`", page)
        assert [text for text in code if re.search(r"&#?\w+;|\\", text)] == []
    page = html.unescape(pages.commands_page())
    assert "| <code>--device [auto|cpu|cuda]</code> |" in page


def test_what_is_typed_has_no_prompt() -> None:
    """A block is copied as a whole; what it prints stands in a block of its own."""
    for page in [*HOOK.parents[1].glob("*.md"), *HOOK.parent.rglob("*.md")]:
        assert (
            re.findall(r"^ *[$#>] (?:cloze|python|pip|make) .*$", page.read_text(), re.M) == []
        ), page


def test_lists_within_lists_are_so_on_the_site_and_pages_are_linked() -> None:
    """The site's Markdown takes an indent of less than four for the outer list."""
    found = {}
    for page in [*HOOK.parents[1].glob("*.md"), *HOOK.parent.rglob("*.md")]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        outer = re.findall(r"^ {1,3}(?:[-*+]|\d+\.) .*$", text, re.M)
        bare = re.findall(r"(?<![\w`(\[/.])docs/[\w/-]+\.md(?![\w`])", text)
        found |= {str(page.relative_to(HOOK.parents[1])): outer + bare} if outer + bare else {}
    assert found == {}


def test_no_cell_of_a_table_ends_within_code() -> None:
    """A forge ends a cell at each `|` that is not escaped, in code, too."""
    root, cut = HOOK.parents[1], []
    for page in [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("labs/**/*.md")]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        rows = re.findall(r"^\|.*$", text, re.M)
        cut += [row for row in rows for code in re.findall("`([^`]*)`", row) if "|" in code]
    assert cut == []


def test_the_readme_lists_the_families() -> None:
    text = (HOOK.parents[1] / "README.md").read_text()
    listed = re.search(r"(\d+) families equal transformers to 1e-5: ([^;]*);", text)
    assert listed
    assert int(listed[1]) == len(exportable())
    assert re.findall(r"[\w-]+", listed[2].replace(" and ", ", ")) == list(exportable())


def test_first_pages_show_the_same_figures_of_one_day() -> None:
    """The demo's table is in the README and in Get started, its figures again in their texts."""
    root = HOOK.parents[1]
    readme, start, tutorial = (
        (root / name).read_text()
        for name in ("README.md", "docs/get-started.md", "docs/tutorial.md")
    )
    table = re.findall(
        r"^    ((?:node|vocab|dataset|pretrain|finetune|evaluate|report)  .*)$", readme, re.M
    )
    assert len(table) == 7
    assert [line for line in table if f"\n{line}\n" not in start] == []
    figures = dict(
        re.findall(r"(held-out MLM|unigram entropy|accuracy|from_scratch) (\d\.\d+)", start)
    )
    told = start.partition("Each line is a stage")[2]
    assert [figure for figure in figures.values() if figure not in told] == []
    days = {
        re.search(r"table \((\d{4}-\d\d-\d\d)", readme)[1],  # type: ignore[index]
        re.search(r"\((\d{4}-\d\d-\d\d), two cores of an", start)[1],  # type: ignore[index]
        re.search(r"printed on (\d{4}-\d\d-\d\d)", tutorial)[1],  # type: ignore[index]
    }
    assert len(days) == 1


def test_the_tutorial_shows_one_run() -> None:
    """A figure of a later step is the one that the run printed."""
    text = (HOOK.parent / "tutorial.md").read_text()
    (run,) = re.findall(r"^✓ corpus.*?^```", text, re.M | re.S)
    rest = text.partition(run)[2]
    loss, accuracy, scratch = (
        re.search(rf"{name} (\d\.\d+)", run)[1]  # type: ignore[index]
        for name in ("held-out MLM", "accuracy", "from_scratch")
    )
    assert f"to {float(loss):.2f} nats" in rest
    assert re.search(rf"accuracy on the dev split is {accuracy}\. .* {scratch} from random", rest)
    labels = re.findall(r"'label': '(\w+)', 'score': ([\d.]+)", rest)
    assert len(labels) == 2
    assert len(set(labels)) == 1  # what Cloze says is what transformers says
    rows = re.search(r"([\d,]+) rows", run)[1]  # type: ignore[index]
    assert f"row     12 of {rows}, train" in rest


def test_each_promise_of_the_readme_names_tests_that_exist() -> None:
    root = HOOK.parents[1]
    (table,) = re.findall(r"^\| Promise .*?\n\n", (root / "README.md").read_text(), re.M | re.S)
    rows = table.strip().splitlines()[2:]
    for row in rows[:-1]:  # the last one is of speed, which benchmarks show
        names = re.findall(r"`(?:tests/)?([\w/]+(?:\.py)?)`", row)
        assert names, row
        assert all(list((root / "tests").glob(f"**/{name}")) for name in names), row
    assert len(rows) >= 4


def test_each_promise_to_those_who_upgrade_names_tests_that_exist() -> None:
    root = HOOK.parents[1]
    page = (HOOK.parent / "upgrade.md").read_text()
    (table,) = re.findall(r"^\| \| within a minor .*?\n\n", page, re.M | re.S)
    *promises, internal = table.strip().splitlines()[2:]
    assert "is internal" in internal
    for row in promises:
        names = re.findall(r"`(?:tests/)?([\w/]+\.(?:py|txt|json))`", row.rpartition(" | ")[2])
        assert names, row
        assert all(list((root / "tests").glob(f"**/{name}")) for name in names), row
    assert len(promises) >= 5


def test_the_readme_counts_the_tables_of_papers() -> None:
    root = HOOK.parents[1]
    tables = list((root / "labs" / "papers" / "presets").glob("*.yaml"))
    text = (root / "README.md").read_text()
    assert f"{len(tables)} [tables of papers]" in text


def test_every_requirement_names_this_distribution_and_an_extra_of_it() -> None:
    """Another name is another project on PyPI."""
    root = HOOK.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pages = [path for path in root.glob("*.md") if path.name != "CHANGELOG.md"]
    for folder in ("core", "docs", "flows", "infra", "labs", "model", "pipeline", "src", "tests"):
        pages += [*(root / folder).rglob("*.py"), *(root / folder).rglob("*.md")]
        pages += (root / folder).rglob("*.yaml")
    found = 0
    for page in pages:
        required = re.findall(r"['`](cloze[\w-]*|\.)\[([a-z0-9,]+)\]['`]", page.read_text())
        for name, extras in required:
            assert name in (".", project["name"]), page
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), page
        found += len(required)
    assert found >= 10


def documented_commands() -> list[tuple[str, list[str]]]:
    """Lines of the pages that begin with `cloze`, as (page and line, words); no comments."""
    root = HOOK.parents[1]
    found = []
    for page in [root / "README.md", *sorted(root.glob("docs/**/*.md"))]:
        text = re.sub(r" #.*$", "", page.read_text().replace("\\\n", " "), flags=re.M)
        for line in re.findall(r"""^    (cloze [a-z](?:[^\n'"]|'[^']*'|"[^"]*")*)$""", text, re.M):
            words = shlex.split(line)
            end = min(
                (words.index(word) for word in ("|", ">", "&&", "&") if word in words), default=None
            )
            found.append((f"{page.relative_to(root)}: {line}", words[1:end]))
    return found


@pytest.mark.parametrize(("line", "words"), documented_commands())
def test_documented_commands_are_accepted(line: str, words: list[str]) -> None:
    """`…` stands for other words, so nothing is missing there."""
    command: click.Command | None = cloze
    while isinstance(command, click.Group) and words:
        command, words = command.get_command(click.Context(command), words[0]), words[1:]
    assert command is not None
    try:
        command.make_context(line, [word for word in words if word != "…"])
    except click.MissingParameter:
        assert "…" in words, line
    except click.BadParameter as error:
        if "does not exist" not in error.message:
            raise


# Servers, networks, minutes of work, and models, for which torch is imported first.
ELSEWHERE = """ui serve fetch deploy dashboard import run doctor nightly fill-mask score attention
    generate search neighbours classify tag embed answer""".split()


def test_documented_commands_in_an_empty_directory_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a new user types them: one sentence with a remedy, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLOZE_RUNS_DIR", raising=False)
    count = 0
    for line, words in documented_commands():
        if words[0] in ELSEWHERE or re.search("://|hf=", " ".join(words)):
            continue
        code, said = main([word for word in words if word != "…"]), capsys.readouterr()
        count += 1
        assert code in (0, 2, 3), f"{line}: {said.err}"
        if code:
            assert said.err.startswith("cloze: "), line
            assert said.err.count("\n") == 1, line
            assert re.search(r"[;,] |see |: .* is left", said.err), f"{line}: {said.err}"
            assert not said.err.rstrip().endswith(("choose from", ";", ":")), said.err
    assert count > 80
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".arrow", ".json")]
