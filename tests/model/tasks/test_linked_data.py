"""Data of a task whose folders are links, such as to a larger disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloze.core.errors import DataError
from cloze.flows.run.targets import resolve_path
from cloze.model.tasks.files import data_fingerprint, missing_split, split_bytes, split_files
from cloze.model.tasks.options import TaskOptions

SPLITS = ("train", "dev")


def test_linked_splits_are_those_that_the_links_lead_to(tmp_path: Path) -> None:
    plain, linked = tmp_path / "plain", tmp_path / "linked"
    linked.mkdir()
    for split in SPLITS:
        (plain / split).mkdir(parents=True)
        row = json.dumps({"text": f"a text of {split}", "label": "a"})
        (plain / split / "0000.jsonl").write_text(row)
        (linked / split).symlink_to(f"../plain/{split}")
    options = TaskOptions()
    fingerprints = {data_fingerprint(str(path), options, SPLITS) for path in (plain, linked)}
    assert len(fingerprints) == 1
    for split in SPLITS:
        (found,) = split_files(str(linked), split, options, [".jsonl"], "a file")
        assert split in Path(found).read_text()
        assert split_bytes(str(linked), options, split) == split_bytes(str(plain), options, split)
    assert missing_split(str(linked), options, SPLITS) == ""


def test_a_link_to_nothing_is_named_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("gone")
    with pytest.raises(DataError, match=r"data is a link to gone, which does not exist"):
        resolve_path(str(tmp_path / "data"))
