"""Paths of the storage layer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.errors import UsageError, describe_missing_package


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


def test_a_store_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UsageError, match=r"^gs://b/x: gcsfs .*'cloze-pretraining-base\[gcs\]'"):
        storage.exists("gs://b/x")


@pytest.mark.parametrize(
    ("package", "extra"),
    [("s3fs", "s3"), ("huggingface_hub", "hub"), ("gensim", "vectors"), ("mlflow", "flows")],
)
def test_a_missing_package_is_named_with_its_extra(package: str, extra: str) -> None:
    sentence = describe_missing_package(ModuleNotFoundError(package, name=package))
    assert f"cloze-pretraining-base[{extra}]" in sentence
