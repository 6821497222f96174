"""The licence of a data set is what its card states: on the Hub, and in copies of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.artifacts.artifact import read_manifest
from cloze.pipeline.corpus.provenance import card_licence, licence_name
from cloze.pipeline.corpus.sources import Source, list_sources, plan_reading, source_fingerprints
from tests.flows.test_cli import installed
from tests.pipeline.corpus.test_hub_source import PROSE, hub  # noqa: F401

NAMES = st.lists(
    st.sampled_from(["mit", "apache-2.0", "cc-by-sa-4.0", "gfdl", "odc-by", "CC0", "other", "no"]),
    min_size=1,
    max_size=3,
    unique=True,
)
OTHERS = st.dictionaries(
    st.sampled_from(["language", "pretty_name", "license_link", "tags", "dataset_info", "configs"]),
    st.recursive(
        st.text("abc:-# \n'é", max_size=9) | st.none(),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["license", "name"]), inner, max_size=2)
        ),
    ),
)


def copied(folder: Path, head: str | None, place: str = "data/train-0.parquet") -> Path:
    """Write a copy of a data set with one file; return the file."""
    file = folder / place
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"text": PROSE.format(name) * 8} for name in ("tower", "harbour", "mill")]
    pq.write_table(pa.Table.from_pylist(rows), file)
    if head is not None:
        (folder / "README.md").write_bytes(head.encode())
    return file


@given(st.data())
def test_a_card_states_its_licences_whatever_else_its_head_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    names, others = data.draw(NAMES), data.draw(OTHERS)
    stated = names[0] if len(names) == 1 else names
    head = {**others, "license": stated, "size_categories": ["1K<n<10K"]}
    flow = data.draw(st.booleans())
    text = f"---\n{yaml.safe_dump(head, default_flow_style=None if flow else False)}---\n\n# Rows\n"
    folder = tmp_path_factory.mktemp("card")
    line = data.draw(st.sampled_from(["\n", "\r\n"]))
    (folder / "README.md").write_bytes(text.replace("\n", line).encode())
    assert card_licence(str(folder)) == (folder.name, " AND ".join(map(licence_name, names)))


@pytest.mark.parametrize(
    ("head", "licence"),
    [
        ("---\nlicense: other\nlicense_name: open-rail\nlicense_link: LICENSE\n---", "open-rail"),
        ("---\nlicenses:\n- cc-by-4.0\n- unknown\n---", "CC-BY-4.0 AND unknown"),
        ("---\nlicense:\n- unknown\n---", ""),
        (
            "---\nlicenses:\n  snli:\n  - cc-by-4.0\n  nli:\n  - mit\n  - cc-by-4.0\n---",
            "CC-BY-4.0 AND mit",
        ),
        ("\ufeff---\nlicense: 'odc-by'  # of 2024\n---\n", "odc-by"),
        ("---\nlicense: unknown\n---", ""),
        ("---\nlicense:\n---", ""),
        ("---\nlicense:mit\n---", ""),
        ("---\nlicense: &name [\n---", ""),
        ("---\nlicenses:\n  boolq: mit\n---", "mit"),
        ("---\nlicense: mit\n", ""),
        ("# A page\n\nlicense: mit\n\n---\n", ""),
        ("---\ndataset_info:\n  license: mit\n---", ""),
        ("", ""),
    ],
)
def test_what_a_head_states(head: str, licence: str, tmp_path: Path) -> None:
    assert card_licence(str(copied(tmp_path, head)))[1] == licence


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("train.parquet", "train.parquet"),
        ("train.parquet", ""),
        ("train.parquet", "*.parquet"),
        ("data/train-0.parquet", "data"),
        ("data/train-0.parquet", "data/*.parquet"),
        ("data/train-0.parquet", "*/train-*"),
        ("en/train/0.parquet", "en/train/0.parquet"),
        ("en/train/0.parquet", "en/train"),
        ("en/train/0.parquet", "**/*.parquet"),
    ],
)
def test_a_copy_has_the_card_of_its_data_set(place: str, named: str, tmp_path: Path) -> None:
    copied(tmp_path / "prose", "---\nlicense: cc-by-4.0\n---", place)
    source = Source(kind="parquet", path=str(tmp_path / "prose" / named))
    listing = list_sources([source])
    assert [slice.slice.origin.licence for slice in plan_reading(listing.slices)[0]] == [
        "CC-BY-4.0"
    ]
    assert listing.describe()[0] == "prose states the licence CC-BY-4.0"


def test_only_a_card_that_states_a_licence_is_told_of_and_changes_the_corpus(
    tmp_path: Path,
) -> None:
    file = copied(tmp_path, None)

    def listed(**values: Any) -> tuple[list[str], dict[str, str]]:
        listing = list_sources([Source(kind="parquet", path=str(file), **values)])
        return listing.describe(), source_fingerprints(listing.slices)

    bare = listed()
    (tmp_path / "README.md").write_text("# My rows\n")
    assert listed() == bare == ([], bare[1])
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    told, hashes = listed()
    assert told
    assert hashes != bare[1]
    given = listed(licence="CC-BY-4.0")  # by the config, which has the last word
    assert given[0] == []
    assert given[1] not in (hashes, bare[1])


@pytest.mark.parametrize(
    ("head", "licence", "told"),
    [
        ("---\nlicense: cc0-1.0\n---\n", "CC0-1.0", "org/prose states the licence CC0-1.0"),
        ("---\nlanguage: en\n---\n", "unknown", "org/prose states no licence"),
        (None, "unknown", "org/prose states no licence"),
    ],
)
def test_a_corpus_of_the_hub_records_the_licence_or_says_that_there_is_none(
    head: str | None,
    licence: str,
    told: str,
    hub: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    del hub.files["README.md"]
    if head is not None:
        hub.files["README.md"] = head.encode()
    read = ("--source", "hf=org/prose:en", "--column", "text=content", "--language", "en")
    done = installed("corpus", *read, "--out", tmp_path / "corpus")
    assert done.returncode == 0, done.stderr
    assert told in " ".join((done.stderr + done.stdout).split())
    manifest = read_manifest(str(tmp_path / "corpus"))
    assert list(manifest.summary["licences"]) == [licence]
    card = json.loads((tmp_path / "corpus" / "card.json").read_text())
    assert [row["licence"] for row in card["licences"]] == [licence]
    assert told in (tmp_path / "corpus" / "card.html").read_text()
