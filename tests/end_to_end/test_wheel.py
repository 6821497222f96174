"""The installed wheel: outside of any checkout it runs presets on the sample data and knows its
deployments.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILT_FROM = ("core", "pipeline", "model", "flows", "labs", "samples")
FILES = (
    "src/cloze/__init__.py",
    "src/cloze/__main__.py",
    "src/cloze/checkpoint.py",
    "src/cloze/py.typed",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "prefect.yaml",
    "constraints.txt",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked as pip does it."""
    base = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in BUILT_FROM:
        shutil.copytree(REPOSITORY / name, base / "source" / name, symlinks=True, ignore=ignored)
    for name in FILES:
        (base / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, base / "source" / name)
    stale = base / "source" / "build" / "lib" / "cloze" / "core" / "stale.py"  # an earlier build's
    stale.parent.mkdir(parents=True)
    stale.touch()
    command = [sys.executable, "-m", "pip", "wheel", str(base / "source"), "-w", str(base), "-q"]
    subprocess.run([*command, "--no-deps", "--no-build-isolation"], check=True, capture_output=True)
    (built,) = base.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(base / "site")
    return base / "site"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


def cloze(wheel: Path, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program of the wheel in a directory that is no checkout."""
    code = (
        f"import cloze.flows.cli; assert cloze.__file__.startswith({str(wheel)!r}); "
        f"cloze.flows.cli.entry()"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(wheel),
        "PYTHONDONTWRITEBYTECODE": "",  # compiled once, as pip does it
        "CLOZE_RUNS_DIR": str(place / "runs"),
    }
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=300
    )


def test_files_of_an_earlier_build_are_not_in_it(wheel: Path) -> None:
    assert (wheel / "cloze" / "core" / "errors.py").exists()
    assert not (wheel / "cloze" / "core" / "stale.py").exists()


def test_all_data_files_of_the_packages_are_in_it(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "core", "pipeline", "model", "flows", "labs"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    missing = [
        name
        for name in listed
        if not name.endswith(".md") and not (wheel / "cloze" / name).exists()
    ]
    assert not missing
    for name in ("prefect.yaml", "constraints.txt"):
        copy = wheel / "cloze" / "flows" / "data" / name
        assert not copy.is_symlink()
        assert copy.read_bytes() == (REPOSITORY / name).read_bytes()


@pytest.mark.soak
def test_presets_run_on_the_sample_data(wheel: Path, place: Path) -> None:
    planned = cloze(wheel, place, "plan", "demo", "--json")
    assert planned.returncode == 0, planned.stderr
    done = cloze(
        wheel, place, "run", "sample", "--until", "corpus", "--set=run.workers=1", "--json"
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert answer
    (manifest,) = place.glob("runs/sample/corpus/manifest.json")
    assert json.loads(manifest.read_text())["rows"] > 50


def test_a_preset_without_text_says_so(wheel: Path, place: Path) -> None:
    planned = cloze(wheel, place, "plan", "bert-base")
    assert planned.returncode == 2
    assert "corpus.sources is missing" in planned.stderr


def test_deployments_are_known(wheel: Path, place: Path) -> None:
    code = "import yaml; from cloze.flows.prefect.environment import PREFECT_YAML as path;"
    code += "print(len(yaml.safe_load(path.read_text())['deployments']))"
    environment = {**os.environ, "PYTHONPATH": str(wheel), "PREFECT_HOME": str(place)}
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "8"
