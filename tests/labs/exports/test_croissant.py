"""Exports of data: every file, Croissant metadata that its own library accepts, and a card."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from cloze.core.artifacts.artifact import data_files, hash_files, read_manifest
from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.model.hub.stages import EXPORT, ExportConfig
from tests.model.hub.test_card import manifest

CROISSANT = ExportConfig(export_as="croissant")


def write_dataset(runs: Path) -> str:
    """An artifact with shards of two splits, whose rows have every kind of field."""
    masks = pa.list_(pa.struct([("positions", pa.list_(pa.uint16()))]))
    schema = pa.schema({"text": pa.string(), "masks": masks, "score": pa.float32()})
    rows = pa.table({"text": ["a"], "masks": [[{"positions": [1]}]], "score": [0.5]}, schema)
    path = runs / "my data"
    path.mkdir(parents=True)
    for name in ("train-00000-of-00001.arrow", "heldout-00000-of-00001.arrow"):
        with pa.OSFile(str(path / name), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_table(rows)
    files = hash_files(str(path), data_files(str(path)))
    created = "2026-11-01T00:00:00+00:00"
    return manifest(path, "dataset", "d" * 64, files=files, rows=1, created=created)


def test_a_dataset_with_its_metadata(tmp_path: Path) -> None:
    path, out = write_dataset(tmp_path / "runs"), tmp_path / "out"
    before = read_manifest(path)
    execute(EXPORT, CROISSANT, {"checkpoint": path}, str(out))
    assert read_manifest(path) == before  # nothing is added to the dataset itself
    shard = "train-00000-of-00001.arrow"
    assert (out / shard).read_bytes() == (Path(path) / shard).read_bytes()
    content = json.loads((out / "croissant.json").read_text())
    digests = {entry["name"]: entry.get("sha256") for entry in content["distribution"]}
    assert digests[shard] == {file.path: file.sha256 for file in before.files}[shard]
    for entry in content["distribution"]:
        if "sha256" in entry:
            del entry["sha256"]
            assert entry.pop("contentSize") == f"{(out / entry['name']).stat().st_size} B"
    assert content == json.loads(Path(__file__).with_name("croissant.json").read_text())
    card = (out / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["tags"] == ["croissant", "cloze"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_its_own_library_accepts_it(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="needs mlcroissant ([handover])")
    path, out = write_dataset(tmp_path / "runs"), tmp_path / "out"
    execute(EXPORT, CROISSANT, {"checkpoint": path}, str(out))
    found = mlcroissant.Dataset(str(out / "croissant.json")).metadata
    assert not found.issues.errors
    fields = {field.name: field for field in found.record_sets[1].fields}
    assert list(fields) == ["text", "masks", "score"]
    assert [field.name for field in fields["masks"].sub_fields] == ["positions"]


def test_checkpoints_are_no_data(tmp_path: Path) -> None:
    path = manifest(tmp_path / "vocab", "vocab", "e" * 64)
    with pytest.raises(UsageError, match="is for artifacts of corpus, dataset, semdedup"):
        execute(EXPORT, CROISSANT, {"checkpoint": path}, str(tmp_path / "out"))
