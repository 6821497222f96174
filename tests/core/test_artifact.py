"""Artifacts: the manifest says what is there, and verify finds what is not as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import Manifest
from cloze.core.errors import DataError
from cloze.flows.cli import main
from tests.conftest import REPOSITORY


def make(path: Path) -> Manifest:
    (path / "sub").mkdir(parents=True)
    (path / "a.arrow").write_bytes(b"rows")
    (path / "sub" / "b.txt").write_bytes(b"words")
    (path / "metrics.jsonl").write_bytes(b"{}")
    (path / "_scratch").mkdir()
    (path / "_scratch" / "x").write_bytes(b"no part of it")
    files = artifact.hash_files(
        str(path), artifact.data_files(str(path)), volatile=["metrics.jsonl"]
    )
    manifest = Manifest(
        stage="corpus", version=1, fingerprint="f", parents={}, config={"a": 1}, files=files
    )
    artifact.write_manifest(str(path), manifest)
    return manifest


def test_round_trip(tmp_path: Path) -> None:
    made = make(tmp_path / "x")
    assert artifact.read_manifest(str(tmp_path / "x")) == made
    assert [entry.path for entry in made.files] == ["a.arrow", "metrics.jsonl", "sub/b.txt"]
    assert artifact.verify(str(tmp_path / "x")).ok


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda p: (p / "a.arrow").write_bytes(b"rowz"), "a.arrow has sha256"),
        (lambda p: (p / "a.arrow").write_bytes(b"ro"), "a.arrow has 2 bytes, the manifest says 4"),
        (lambda p: (p / "sub" / "b.txt").unlink(), "sub/b.txt is missing"),
        (lambda p: (p / "new").write_bytes(b""), "new is not in the manifest"),
    ],
)
def test_verify_names_the_damage(tmp_path: Path, damage, expected: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "x")
    damage(tmp_path / "x")
    found = artifact.verify(str(tmp_path / "x"))
    assert not found.ok
    assert any(expected in error for error in found.errors), found.errors


def test_versions_of_the_libraries_that_shape_text_are_recorded() -> None:
    text = {
        "ftfy",
        "resiliparse",
        "brotli",
        "trafilatura",
        "phonenumberslite",
        "lxml",
        "sentencex",
        "py3langid",
        "sentencepiece",
        "tokenizers",
    }
    assert text <= set(artifact.package_versions())
    declared = (REPOSITORY / "pyproject.toml").read_text()
    misspelt = [
        name
        for name in artifact.RECORDED_PACKAGES
        if not re.search(rf'"{re.escape(name)}[">=<\[]', declared)
    ]
    assert misspelt == []


def test_content_hash_leaves_out_what_holds_times(tmp_path: Path) -> None:
    first = make(tmp_path / "x").content_sha256
    (tmp_path / "x" / "metrics.jsonl").write_bytes(b'{"time": 1}')
    assert artifact.verify(str(tmp_path / "x")).content_sha256 == first
    (tmp_path / "x" / "a.arrow").write_bytes(b"other")
    assert artifact.verify(str(tmp_path / "x")).content_sha256 != first


def test_unfinished_and_damaged_manifests_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished artifact"):
        artifact.read_manifest(str(tmp_path))
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        artifact.read_manifest(str(tmp_path))
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(DataError, match="format 99"):
        artifact.read_manifest(str(tmp_path))


def test_fingerprint_depends_on_everything_that_shapes_the_result() -> None:
    base = artifact.fingerprint("corpus", 1, {"a": 1, "b": 2}, {"x": "1"})
    assert artifact.fingerprint("corpus", 1, {"b": 2, "a": 1}, {"x": "1"}) == base
    others = [
        ("vocab", 1, {"a": 1, "b": 2}, {"x": "1"}),
        ("corpus", 2, {"a": 1, "b": 2}, {"x": "1"}),
        ("corpus", 1, {"a": 1, "b": 3}, {"x": "1"}),
        ("corpus", 1, {"a": 1, "b": 2}, {"x": "2"}),
    ]
    assert len({artifact.fingerprint(*other) for other in others} | {base}) == 5


def test_a_linked_file_is_the_same_file(tmp_path: Path) -> None:
    make(tmp_path / "x")
    artifact.link_file(str(tmp_path / "x" / "sub" / "b.txt"), str(tmp_path / "y" / "sub" / "b.txt"))
    assert (tmp_path / "y" / "sub" / "b.txt").samefile(tmp_path / "x" / "sub" / "b.txt")
    artifact.link_file(
        str(tmp_path / "x" / "a.arrow"), str(tmp_path / "y" / "sub" / "b.txt")
    )  # in place of what is there
    assert (tmp_path / "y" / "sub" / "b.txt").read_bytes() == b"rows"
    assert (tmp_path / "x" / "sub" / "b.txt").read_bytes() == b"words"


def test_all_artifacts_below_a_directory_are_found(tmp_path: Path) -> None:
    for name in ("one", "deep/two", "one/inside"):
        make(tmp_path / name)
    (tmp_path / "latest").symlink_to(tmp_path / "one")
    found = artifact.find_artifacts(str(tmp_path))
    assert found == [str(tmp_path / "deep/two"), str(tmp_path / "one")]
    assert artifact.find_artifacts(str(tmp_path / "one")) == [str(tmp_path / "one")]
    for nothing in (tmp_path / "deep/two/sub", tmp_path / "nothing", tmp_path / "one" / "a.arrow"):
        with pytest.raises(DataError, match="no finished artifact"):
            artifact.find_artifacts(str(nothing))


def test_verify_reports_every_byte_and_names_every_bad_file(tmp_path: Path) -> None:
    make(tmp_path / "x")
    read: list[int] = []
    found = artifact.verify(str(tmp_path / "x"), 3, read.append)
    assert sum(read) == found.bytes == 11
    assert found.files == 3
    (tmp_path / "x" / "a.arrow").write_bytes(b"rowz")
    (tmp_path / "x" / "sub" / "b.txt").write_bytes(b"wordz")
    assert [error.split()[0] for error in artifact.verify(str(tmp_path / "x")).errors] == [
        "a.arrow",
        "sub/b.txt",
    ]


def test_the_verb_reads_one_artifact_or_all_below(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        make(tmp_path / name)
    assert main(["verify", str(tmp_path / "one"), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    [one] = found["artifacts"]
    assert (found["ok"], one["ok"]) == (True, True)
    assert one["content_sha256"] == artifact.read_manifest(str(tmp_path / "one")).content_sha256
    assert main(["verify", str(tmp_path), "--json", "--threads", "2"]) == 0
    both = json.loads(capfd.readouterr().out)
    assert {found["artifact"] for found in both["artifacts"]} == {
        str(tmp_path / "one"),
        str(tmp_path / "two"),
    }
    (tmp_path / "two" / "a.arrow").write_bytes(b"rowz")
    assert main(["verify", str(tmp_path), "--json"]) == 3
    output = capfd.readouterr()
    assert f"{tmp_path / 'two'}: a.arrow has sha256" in output.err
    [error] = json.loads(output.out)["artifacts"][1]["errors"]
    assert output.err.strip() == f"{tmp_path / 'two'}: {error}"
