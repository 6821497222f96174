"""A release: archives say nothing of the machine that built them, and versions agree."""

from __future__ import annotations

import gzip
import importlib.util
import io
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import REPOSITORY

Members = list[tuple[str, bytes, int, str, int]]


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", REPOSITORY / "infra" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = _module()


def archive(members: Members, clock: int) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as new:
        for name, content, mtime, owner, mode in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = len(content), mtime, owner, mode
            new.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=clock)


@given(st.data())
def test_an_archive_is_the_same_whoever_built_it_and_when(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.text("abcé", min_size=1, max_size=9), unique=True, min_size=1))
    contents = {name: data.draw(st.binary(max_size=9)) for name in names}
    runs = data.draw(st.fixed_dictionaries({name: st.booleans() for name in names}))

    def built() -> bytes:
        members = [
            (
                name,
                contents[name],
                data.draw(st.integers(0, 2**31)),
                data.draw(st.sampled_from(["root", "builder"])),
                data.draw(st.sampled_from([0o755, 0o700, 0o775] if runs[name] else [0o644, 0o600])),
            )
            for name in data.draw(st.permutations(names))
        ]
        return release.repacked(archive(members, data.draw(st.integers(0, 2**31))), 1_000)

    first = built()
    assert first == built()
    with tarfile.open(fileobj=io.BytesIO(first)) as read:
        held = {member.name: file.read() for member in read if (file := read.extractfile(member))}
    assert held == contents


def test_a_byte_that_differs_ends_the_release() -> None:
    release.compared({"a.whl": b"1"}, {"a.whl": b"1"})
    with pytest.raises(SystemExit, match=r"not reproducible.*a\.whl"):
        release.compared({"a.whl": b"1", "b": b""}, {"a.whl": b"2", "b": b""})
    with pytest.raises(SystemExit, match=r"not reproducible.*b"):
        release.compared({"a.whl": b"1"}, {"a.whl": b"1", "b": b""})


def test_a_release_names_the_repository_that_builds_it_and_invents_none() -> None:
    for folder in release.DISTRIBUTIONS:
        text = (REPOSITORY / folder / "pyproject.toml").read_text()
        assert tomllib.loads(text + release.urls(""))["project"].get("urls") is None
        found = tomllib.loads(text + release.urls("https://forge.example/org/cloze"))["project"]
        assert found["urls"]["Issues"] == "https://forge.example/org/cloze/issues"


@pytest.mark.parametrize(
    ("owners", "repository", "said"),
    [
        ("* @org/all\n/core/ @org/data  # text\n", "https://forge.example/org/cloze", []),
        ("# * @OWNER/all\n", "https://forge.example/org/cloze", ["names no owner of *"]),
        ("* @OWNER/all\n", "https://forge.example/org/cloze", ["still says OWNER"]),
        ("* @org\n/core/ @OWNER\n", "https://forge.example/org/cloze", ["still says OWNER"]),
        ("*\n", "https://forge.example/org/cloze", ["names no owner of *"]),
        ("/core/ @org\n", "https://forge.example/org/cloze", ["names no owner of *"]),
        ("* @org\n", "", ["REPOSITORY_URL"]),
        ("* @org\n", "forge.example/org/cloze", ["REPOSITORY_URL"]),
        ("* @org\n", 'https://forge.example/a"b c', ["REPOSITORY_URL"]),
        ("* @org\n", "https:///", ["REPOSITORY_URL"]),
        ("", "", ["REPOSITORY_URL", "names no owner of *"]),
    ],
)
def test_what_the_publisher_has_not_filled_in_is_named(
    owners: str,
    repository: str,
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(release, "REPOSITORY", tmp_path)
    (tmp_path / ".github").mkdir()
    (tmp_path / ".github" / "CODEOWNERS").write_text(owners)
    found = release.missing(repository)
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))


def test_owners_are_of_paths_that_exist_one_a_line() -> None:
    """A forge takes a second pattern of a line for an account, and skips the line."""
    lines = (REPOSITORY / ".github" / "CODEOWNERS").read_text().splitlines()
    rules = [line.lstrip("# ").split() for line in lines if "@" in line]
    assert rules[0][0] == "*"
    for pattern, *owners in rules:
        assert (REPOSITORY / pattern.strip("/*")).exists(), pattern
        assert owners
        assert all(owner.startswith("@") for owner in owners), owners


def test_the_page_on_pypi_leads_to_the_files_of_the_tag() -> None:
    home = "https://forge.example/org/cloze"
    text = (REPOSITORY / "README.md").read_text()
    page = release.absolute(text, home, "1.2.3")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", text)) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert f"![The report of the demo]({home}/raw/v1.2.3/docs/images/report.png)" in page
    assert f"]({home}/blob/v1.2.3/docs/explanation/resume.md#kill-tests)" in page
    assert release.absolute(text, "", "1.2.3") == text  # none is invented


TRACKED = ["core/a.py", "labs/x/README.md", "labs/README.md", "src/cloze/py.typed", "samples/t.tsv"]
PACKED = ["cloze/core/a.py", "cloze/labs/x/README.md", "cloze/py.typed"]
PACKED += ["cloze/flows/data/samples/t.tsv"]


@pytest.mark.parametrize(
    ("more", "packed", "refused"),
    [
        (["docs/a.md", "tests/a.py", "infra/a.py"], ["cloze-1.dist-info/RECORD"], ""),
        (["flows/report/templates/new.html"], [], r"misses \['cloze/flows/report/templates/new"),
        (["pyproject.toml"], ["tests/a.py"], r"holds \['tests/a.py'\]"),
        ([], ["cloze/core/.env"], r"holds \['cloze/core/.env'\]"),
    ],
)
def test_a_wheel_holds_the_packages_and_nothing_else(
    more: list[str], packed: list[str], refused: str
) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        for name in PACKED + packed:
            wheel.writestr(name, "")
    if refused:
        with pytest.raises(SystemExit, match=refused):
            release.check_contents(content.getvalue(), TRACKED + more)
    else:
        release.check_contents(content.getvalue(), TRACKED + more)


def test_what_a_wheel_holds_is_told_by_folder_and_nothing_is_left_out() -> None:
    content = io.BytesIO()
    names = [*PACKED, "cloze/flows/data/prefect.yaml", "cloze-1.dist-info/RECORD", "stray.py"]
    with zipfile.ZipFile(content, "w") as wheel:
        for name in names:
            wheel.writestr(name, "x" * 1000)
    table = release.contents(content.getvalue())
    rows = {line.split()[-1]: int(line.split()[0]) for line in table.splitlines()}
    assert rows == {"cloze/core": 1, "cloze/labs": 1, "cloze": 1, "cloze/flows/data/samples": 1,
                    "cloze/flows": 1, "cloze-1.dist-info": 1, "stray.py": 1}  # fmt: skip
    assert sum(float(line.split()[2]) for line in table.splitlines()) == len(names)


def test_every_place_names_one_version_and_the_changelog_tells_of_it() -> None:
    assert release.version() in (REPOSITORY / "CHANGELOG.md").read_text()
    assert len(release.notes(release.version()).splitlines()) > 20
    with pytest.raises(SystemExit, match=r"no entry for 9\.9\.9"):
        release.notes("9.9.9")


@pytest.mark.parametrize(
    ("tag", "heading", "refused"),
    [
        ("v1.2.3", "## 1.2.3 (2026-12-01)", ""),
        ("v1.2.4", "## 1.2.3 (2026-12-01)", "tag is v1.2.4, its version 1.2.3"),
        ("v1.2.3", "## Unreleased (1.2.3)", "write the version and its date"),
        ("v1.2.3", "## 11.2.3", "no entry"),
        ("v1.2.3", "## 1.2.3\n\n## 1.2.2\n\nold", "no entry"),
    ],
)
def test_a_tag_is_held_to_version_and_changelog(
    tag: str, heading: str, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "REPOSITORY", tmp_path)
    text = (
        heading if "old" in heading else f"# Changelog\n\n{heading}\n\nWhat is new.\n\n## 1.2.2\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"], ["tag", tag]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    if refused:
        with pytest.raises(SystemExit, match=refused):
            release.notes("1.2.3")
    else:
        assert release.notes("1.2.3") == "What is new.\n"


def test_versions_that_differ_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "REPOSITORY", tmp_path)
    (tmp_path / "infra" / "cloze-pretraining").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('version = "1.2.4"\n')
    second = 'version = "1.2.4"\ndependencies = ["cloze-pretraining-base[data]==1.2.3"]\n'
    (tmp_path / "infra" / "cloze-pretraining" / "pyproject.toml").write_text(second)
    with pytest.raises(SystemExit, match=r"1\.2\.3"):
        release.version()


@pytest.mark.parametrize(
    ("does", "refused"),
    [
        (
            'mkdir -p runs/.servers; echo \'{"state": "up"}\' > runs/.servers/state.json; sleep 60',
            "",
        ),
        ("echo a deploy waits for Prefect; exit 1", "a deploy waits"),
    ],
)
def test_a_release_whose_servers_do_not_come_up_is_none(
    does: str, refused: str, tmp_path: Path
) -> None:
    program = tmp_path / "cloze"
    program.write_text(f"#!/bin/bash\ntrap 'exit 0' INT\n{does} & wait\n")
    program.chmod(0o755)
    if refused:
        program.write_text(f"#!/bin/bash\n{does}\n")
        with pytest.raises(SystemExit, match=refused):
            release.served(program, tmp_path, {"PATH": "/usr/bin:/bin"})
    else:
        release.served(program, tmp_path, {"PATH": "/usr/bin:/bin"})
