"""Paths of the storage layer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloze.core import storage


def test_a_link_to_a_store_leads_to_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink("s3://bucket/runs/demo/pretrain-123456789abc", "pretrain")
    os.symlink("elsewhere", "local")
    expected = "s3://bucket/runs/demo/pretrain-123456789abc"
    assert storage.linked("pretrain") == storage.linked("./pretrain/") == expected
    below = str(tmp_path / "pretrain" / "checkpoints" / "step-00000005")
    assert storage.linked(below) == f"{expected}/checkpoints/step-00000005"
    for path in ("none", "local", "local/x", "/none/at/all", "gs://b/x", ".", "/"):
        assert storage.linked(path) == path
