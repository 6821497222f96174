"""docs/how-to/plugin.md as written: its files become a package, which is installed beside the wheel
and used from the command line; without it, and broken, there is one sentence.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_wheel import REPOSITORY
from tests.end_to_end.test_wheel import wheel as wheel

# A minute of CPU; tests/core/test_plugins.py and test_plugin_steps.py are quick.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
PAGE = REPOSITORY / "docs" / "how-to" / "plugin.md"
BLOCK = re.compile(r"^```(\w+)(?: title=\"(.*?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = "pip install --no-deps --no-build-isolation "
QUICK = {"pretrain": "--no-compile", "corpus": "--workers 1", "vocab": "--workers 1"}


def commands() -> list[str]:
    """The page's commands, in order."""
    return [text for kind, _, text in BLOCK.findall(PAGE.read_text()) if kind == "bash"]


class Place:
    """A directory with the page's files, a wheel and what is installed beside it."""

    def __init__(self, path: Path, wheel: Path) -> None:
        self.path, self.site, self.told = path, path / "site", ""
        for _, name, text in BLOCK.findall(PAGE.read_text()):
            if name:
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_text(text)
        (path / "samples").symlink_to(REPOSITORY / "samples")
        (path / "bin").mkdir()
        program = path / "bin" / "cloze"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cloze "$@"\n')
        pip = path / "bin" / "pip"
        pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip -q "$@" --target {self.site}\n')
        for file in (program, pip):
            file.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{wheel}{os.pathsep}{self.site}",
            "CLOZE_RUNS_DIR": str(path / "runs"),
        }

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", script], cwd=self.path, env=self.environment,
            capture_output=True, text=True, timeout=280,
        )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Place:
    """What the page leaves: all its commands were run, and all succeeded."""
    made = Place(tmp_path_factory.mktemp("plugin"), wheel)
    for script in commands():
        for part in re.split(r"\n(?=cloze )", script):
            words = part.split()
            if words[:2] != ["cloze", "doctor"]:  # it asks servers
                more = QUICK.get(words[1], "") if words[0] == "cloze" else ""
                done = made.run(f"{part.rstrip()} {more}")
                assert done.returncode == 0, done.stderr
                made.told += done.stderr
    return made


def manifest(place: Place, name: str) -> Any:
    return json.loads((place.path / "W" / name / "manifest.json").read_text())


def test_the_page_works_as_it_is_written(place: Place) -> None:
    assert "1 dropped" in place.told
    assert manifest(place, "corpus")["counters"]["dropped/verse"] == 1
    assert manifest(place, "pretrain")["config"]["model"]["family"] == "verse"
    assert manifest(place, "tuned")["summary"]["metrics"]["accuracy"] >= 0
    for name, rows in {
        "corpus": ["steps/verse"],
        "pretrain": ["families/verse", "steps/verse"],
        "tuned": ["families/verse", "steps/verse", "tasks/prose-or-verse"],
    }.items():
        about = {"package": "cloze-verse", "version": "0.1.0", "rows": rows}
        assert manifest(place, name)["plugins"] == {"verse": about}


def test_help_and_plans_and_errors_treat_its_rows_as_their_own(place: Place) -> None:
    shown = place.run("cloze corpus --help-all=verse; cloze help tasks; cloze help models").stdout
    assert "--longest-verse N" in shown
    assert "prose-or-verse" in shown
    assert "verse-tiny" in shown
    near = place.run(
        "cloze finetune --checkpoint W/pretrain --task prose-or-vers --data data --out W/no"
    )
    assert near.returncode == 2
    assert "did you mean 'prose-or-verse'?" in near.stderr
    planned = place.run(
        "cloze corpus --source books=samples/books --source text=texts --longest-verse 60"
        " --out W/corpus --json"
    )
    assert json.loads(planned.stdout)["cached"] is True, planned.stderr


def test_without_the_package_a_sentence_names_it(place: Place, tmp_path: Path, wheel: Path) -> None:
    environment = {**place.environment, "PYTHONPATH": str(wheel)}
    asked = subprocess.run(
        [sys.executable, "-m", "cloze", "fill-mask", "W/pretrain", "The [MASK] is high."],
        cwd=place.path, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert asked.returncode == 2
    assert asked.stderr.strip().splitlines()[-1] == (
        "cloze: model family ('verse') is unknown; it is of cloze-verse 0.1.0, which is not"
        " installed; pip install cloze-verse"
    )


def test_a_broken_package_loses_its_rows_only_and_doctor_says_why(
    place: Place, tmp_path: Path
) -> None:
    broken = tmp_path / "site"
    shutil.copytree(place.site, broken)
    (broken / "cloze_verse" / "task.py").write_text("from nowhere import nothing\n")
    environment = {
        **place.environment,
        "PYTHONPATH": place.environment["PYTHONPATH"].replace(str(place.site), str(broken)),
    }
    code = (
        "from cloze.flows.doctor.machine import plugin_packages\n"
        "for one in plugin_packages(): print(one.check, one.observed, one.ok, one.fix)\n"
        "from cloze.model.families.registry import FAMILIES; FAMILIES['verse']\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "plug-in verse cloze-verse 0.1.0 True" in told
    assert (
        "plug-ins task 'prose-or-verse' of plug-in verse (cloze-verse 0.1.0) cannot be imported: "
        "ModuleNotFoundError: No module named 'nowhere' False update or uninstall that package"
    ) in told
