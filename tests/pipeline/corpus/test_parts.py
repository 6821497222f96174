"""How a corpus is cut for its readers and shards: none of it shows in the bytes."""

from __future__ import annotations

import bz2
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.core.arrow import write_arrow
from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.pipeline.corpus import sources
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.document import join_sentences, replace_surrogates
from cloze.pipeline.corpus.duplicates import unit_plans as plans
from cloze.pipeline.corpus.duplicates.plan import plan
from cloze.pipeline.corpus.duplicates.rules import CorpusPlanRequest, find_duplicates
from cloze.pipeline.corpus.duplicates.search import SignatureColumns
from cloze.pipeline.corpus.duplicates.unit_plans import UnitPlan, read_signatures, write_units
from cloze.pipeline.corpus.files.intermediate import (
    CORPUS,
    PART,
    compact_batch,
    shard_of,
    shard_position,
    signatures_schema,
)
from cloze.pipeline.corpus.options import MinHash
from cloze.pipeline.corpus.read import read_and_clean
from cloze.pipeline.corpus.read.read_and_clean import BatchWriter
from cloze.pipeline.corpus.readers.encyclopedia import dump
from cloze.pipeline.corpus.signatures import SKETCH_BYTES
from cloze.pipeline.corpus.sources import Source, group_slices, list_sources, plan_reading
from cloze.pipeline.corpus.stage import STAGE
from tests.pipeline.corpus.corpora import make, prose, rows, write_jsonl
from tests.pipeline.runners.units import build

HEAD = "<mediawiki><siteinfo><namespaces><namespace key='0'/></namespaces></siteinfo>"


def _dump(path: Path, streams: int = 12) -> None:
    """A multistream dump with its index, two pages a stream."""
    data, lines = bz2.compress(HEAD.encode()), []
    for stream in range(streams):
        pages = ""
        for number in (2 * stream + 1, 2 * stream + 2):
            lines.append(f"{len(data)}:{number}:Page {number}")
            text = prose(number) + ("" if number % 5 else prose(7))
            pages += (
                f"<page><title>Page {number}</title><ns>0</ns><id>{number}</"
                f"id><revision><text>{text}</text></revision></page>"
            )
        data += bz2.compress(pages.encode())
    (path / "x-multistream.xml.bz2").write_bytes(data + bz2.compress(b"</mediawiki>"))
    (path / "x-multistream-index.txt.bz2").write_bytes(
        bz2.compress(("\n".join(lines) + "\n").encode())
    )


def test_a_dump_cut_by_its_index_gives_the_same_bytes(tmp_path, monkeypatch):
    _dump(tmp_path)
    source = f"wikipedia={tmp_path}/x-multistream.xml.bz2"
    whole = make(tmp_path / "whole", source, shard_bytes=2048, keep_dropped=True)
    monkeypatch.setattr(dump, "SLICE_BYTES", 600)
    monkeypatch.setattr(sources, "run_bytes", lambda total, least: 0)
    monkeypatch.setattr(plans, "run_bytes", lambda total, least: 5000)  # several runs
    slices, repeated = plan_reading(
        list_sources([Source(kind="wikipedia", path=f"{tmp_path}/x-multistream.xml.bz2")]).slices
    )
    assert (len(slices) > 3, repeated) == (True, 0)
    assert len({one.part for one in slices}) == len(slices)
    cut = make(tmp_path / "cut", source, shard_bytes=2048, keep_dropped=True)
    assert whole.manifest.rows >= 20
    assert cut.manifest.fingerprint == whole.manifest.fingerprint
    assert cut.manifest.content_sha256 == whole.manifest.content_sha256
    assert cut.manifest.counters == whole.manifest.counters


def test_a_file_that_is_there_whole_and_cut_is_read_once(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _dump(tmp_path / "a")
    (tmp_path / "b" / "x-multistream.xml.bz2").write_bytes(
        (tmp_path / "a" / "x-multistream.xml.bz2").read_bytes()
    )
    monkeypatch.setattr(dump, "SLICE_BYTES", 600)
    sources = [Source(kind="wikipedia", path=str(tmp_path / name)) for name in "ab"]
    for order in (sources, sources[::-1]):
        slices, repeated = plan_reading(list_sources(order).slices)
        assert repeated == 0  # one file of one name, from two places
        assert len(slices) > 3
        assert [one.slice.span for one in slices] == sorted(one.slice.span for one in slices)
        assert all(set(one.sources) == set(sources) for one in slices)


def test_small_files_share_a_part_and_their_number_shows_in_nothing(tmp_path, monkeypatch):
    for number in range(30):
        folder = tmp_path / "source" / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_text(prose(number) if number % 7 else prose(1))
    (tmp_path / "source" / "empty.txt").write_text("")
    (tmp_path / "source" / "short.txt").write_text("Too short.")
    write_jsonl(tmp_path / "a.jsonl", *(prose(n) for n in range(25, 45)))
    given = [f"text={tmp_path}/source", f"jsonl={tmp_path}/a.jsonl"]
    listed = list_sources(
        [Source(kind=kind, path=path) for kind, path in (one.split("=") for one in given)]
    )
    slices, _ = plan_reading(listed.slices)
    together = group_slices(slices)
    assert [one.kind for one in together] == ["jsonl", "text"]
    assert sorted(one.slice.name for both in together for one in both.slices) == sorted(
        one.slice.name for one in slices
    )
    shared = make(tmp_path / "shared", *given, shard_bytes=2048, keep_dropped=True)
    monkeypatch.setattr(sources, "run_bytes", lambda total, least: 3000)
    cut = group_slices(slices)
    assert 4 < len(cut) < len(slices)
    assert len({one.part for one in cut}) == len(cut)
    some = make(tmp_path / "some", *given, shard_bytes=2048, keep_dropped=True)
    monkeypatch.setattr(sources, "run_bytes", lambda total, least: 0)
    assert [one.slices for one in group_slices(slices)] == [(one,) for one in slices]
    alone = make(tmp_path / "alone", *given, shard_bytes=2048, keep_dropped=True)
    cards = [
        json.loads((tmp_path / name / "card.json").read_text())
        for name in ("shared", "some", "alone")
    ]
    assert cards[1:] == [cards[0], cards[0]]
    for made in (some, alone):
        assert made.manifest.content_sha256 == shared.manifest.content_sha256
        assert made.manifest.counters == shared.manifest.counters
        assert made.manifest.summary == shared.manifest.summary
    assert shared.manifest.summary["quarantined"] == {"empty_file": 1}


def test_files_of_different_sources_stand_in_bundles_of_their_own(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{name}{number}.txt").write_text(f"{name} {prose(number)}")
    listed = list_sources([Source(kind="text", path=str(tmp_path / name)) for name in "ab"])
    assert [len(one.slices) for one in group_slices(plan_reading(listed.slices)[0])] == [3, 3]


def test_columns_are_part_of_a_source(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(
            json.dumps({"body": prose(n), "other": prose(n + 50), "name": f"N{n}"}) + "\n"
            for n in range(3)
        )
    )

    def config(*fields):
        sources = [{"kind": "jsonl", "path": str(path), "fields": named} for named in fields]
        return parse_config(CorpusConfig, {"sources": sources}, "corpus")

    body, other = {"text": "body", "title": "name"}, {"text": "other", "title": "name"}
    prints = [
        STAGE.fingerprint(config(*fields), {})
        for fields in ((body,), (other,), (body, other), (other, body))
    ]
    assert len(set(prints)) == 3
    assert prints[2] == prints[3]
    assert len(plan_reading(config(body, other).listed())[0]) == 2
    with pytest.raises(UsageError, match="unknown field 'txt'"):
        config({"txt": "body"})


def test_the_same_document_from_columns_of_other_names(tmp_path):
    from cloze.core.stages.execute import execute

    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"body": prose(n), "name": f"N{n}"}) + "\n" for n in range(3))
    )
    values = {
        "sources": [
            {"kind": "jsonl", "path": str(path), "fields": {"text": "body", "title": "name"}}
        ]
    }
    result = execute(STAGE, parse_config(CorpusConfig, values, "corpus"), {}, str(tmp_path / "out"))
    assert sorted(row["title"] for row in rows(result)) == ["N0", "N1", "N2"]


def _row(number: int) -> dict:
    sentences = [f"s{number} {at}" * (number % 4) for at in range(number % 5)]
    return {
        "key": int(random_keys.splitmix64(number)), "id": f"d{number}", "source": "text",
        "title": "é" * (number % 3),
        "url": f"u{number}", "licence": "é" * (number % 2), "origin": f"o{number % 3}",
        "infobox": [{"box": "é" * at, "name": f"n{at}",
        "value": f"v{number}"} for at in range(number % 3)],
        "split": "train", "sentences": sentences, "paragraphs": list(range(0, len(sentences), 2)),
    }  # fmt: skip


@given(st.lists(st.integers(0, 600), max_size=60), st.sampled_from([1, 500, 1 << 20]))
def test_batches_hold_what_was_added_in_order(sizes, batch_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_and_clean, "BATCH_BYTES", batch_bytes)
        some = pa.schema([PART.field(name) for name in ("id", "infobox")])
        sinks = {arrow_schema: pa.BufferOutputStream() for arrow_schema in (PART, some)}
        files = [(pa.ipc.new_file(sink, one), one) for one, sink in sinks.items()]
        writer = BatchWriter(files)
        for number, size in enumerate(sizes):
            writer.add(_row(number), size)
        writer.flush()
        for file, _ in files:
            file.close()
    assert (writer.rows, writer.bytes) == (len(sizes), sum(sizes))
    lengths = []
    for arrow_schema, sink in sinks.items():
        reader = pa.ipc.open_file(sink.getvalue())
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        lengths.append([batch.num_rows for batch in batches])
        assert reader.schema.equals(arrow_schema, check_metadata=True)
        assert [row for batch in batches for row in batch.to_pylist()] == [
            {name: _row(number)[name] for name in arrow_schema.names}
            for number in range(len(sizes))
        ]
    assert lengths[0] == lengths[1]
    assert all(lengths[0])


@given(st.lists(st.integers(0, 50), max_size=30), st.lists(st.integers(1, 10), max_size=4))
def test_bytes_follow_from_values_alone(numbers, cuts):
    """However a table is cut, sliced and taken, one batch of its values is the same file."""
    straight = pa.Table.from_pylist([_row(number) for number in numbers], schema=PART)
    pieces, at = [], 0
    for cut in [*cuts, len(numbers)]:
        noise = pa.Table.from_pylist(
            [_row(99), *(_row(n) for n in numbers[at : at + cut]), _row(98)], schema=PART
        )
        pieces.append(noise.slice(1, len(numbers[at : at + cut])))
        at += cut
    sinks = []
    for table in (straight, pa.concat_tables(pieces)):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, CORPUS) as writer:
            writer.write_batch(compact_batch(table, CORPUS))
        sinks.append(sink.getvalue().to_pybytes())
    assert sinks[0] == sinks[1]
    assert pa.ipc.open_file(sinks[1]).read_all().to_pylist() == [_row(number) for number in numbers]


def test_text_of_a_stored_document():
    assert join_sentences(["A.", "B.", "C."], [0, 2]) == "A. B.\nC."
    assert join_sentences([], []) == ""
    assert replace_surrogates("a\ud800b") == "a\ufffdb"
    assert replace_surrogates("plain") == "plain"


def _references(directory: Path, count: int, cuts: list[int], verified: bool) -> list[str]:
    """References of made-up documents: every third is a copy of an earlier one."""
    minhash = MinHash(bands=3, rows=4, ngram=5)
    number = np.arange(count, dtype=np.uint64)
    group = np.where(number % 3 == 2, number // 2, number)
    columns = {
        "key": random_keys.fold_in(1, np.where(number % 11 == 10, number - 1, number)),
        "characters": (200 + random_keys.fold_in(2, number) % np.uint64(7)).astype(np.uint32),
        "bytes": (300 + number % 5).astype(np.uint32),
        "heldout": number % 7 == 0,
        "exact_high": random_keys.fold_in(3, np.where(number % 13 == 12, number - 5, number)),
        "exact_low": random_keys.fold_in(4, np.where(number % 13 == 12, number - 5, number)),
        **{
            f"band_{band:02d}": random_keys.fold_in(
                5, band, np.where((number + band) % 4 > 0, group, number + 10_000)
            )
            for band in range(3)
        },
    }
    arrow_schema = signatures_schema(minhash, verified)
    if verified:
        places = np.arange(SKETCH_BYTES)
        sketch = (random_keys.fold_in(6, places, group[:, None] // 2) % np.uint64(5)).astype(
            np.uint8
        )
        columns["sketch"] = [row.tobytes() for row in sketch]
    table = pa.table(columns, schema=arrow_schema)
    paths = []
    for begin, end in itertools.pairwise([0, *cuts, count]):
        paths.append(str(directory / f"{len(cuts)}-{begin}-{verified}.refs.arrow"))
        write_arrow(
            paths[-1], arrow_schema, table.slice(begin, end - begin).to_batches(max_chunksize=17)
        )
    return paths


@pytest.mark.parametrize("threshold", [0.0, 0.6])
def test_cutting_does_not_change_who_stays(tmp_path, threshold):
    minhash = MinHash(bands=3, rows=4, ngram=5)
    found = []
    for cuts in ([], [50], [1, 2, 3, 170]):
        columns = SignatureColumns(str(tmp_path))
        paths = _references(tmp_path, 200, cuts, threshold > 0)
        parts = [path.removesuffix(".refs.arrow") for path in paths]
        units = range(write_units(str(tmp_path), parts, [100] * len(parts)))
        columns.gather(batch for unit in units for batch in read_signatures(str(tmp_path), unit))
        copies = find_duplicates(columns, lambda _: [], minhash, True, threshold)
        found.append([copies.numbers.tolist(), copies.reason.tolist(), copies.of.tolist()])
        for path in tmp_path.glob("ranked_*"):
            path.unlink()
    assert found[0] == found[1] == found[2]
    numbers, reasons, of = found[0]
    assert numbers == sorted(set(numbers))
    assert set(reasons) == {1, 2, 3}
    assert not set(of) & set(numbers)


def test_the_plans_name_every_document_once(tmp_path, monkeypatch):
    """Each unit's plan keeps or drops each of its documents; originals know their duplicates."""
    monkeypatch.setattr(plans, "run_bytes", lambda total, least: 9000)
    paths = _references(tmp_path, 300, [40, 90], False)
    parts = [path.removesuffix(".refs.arrow") for path in paths]
    wanted = CorpusPlanRequest(
        shard_bytes=9000,
        directory=str(tmp_path / "plans"),
        keep_dropped=True,
        minhash=MinHash(3, 4, 5),
        exact=True,
        threshold=0.0,
        examples=3,
        parts=parts,
        kinds=["text"] * len(paths),
        sizes=[40 * 300, 50 * 300, 210 * 300],
    )
    begun = build(tmp_path / "out")
    with begun.cleanup:
        found = plan(begun, wanted, 300)
    batches = {part: pa.ipc.open_file(f"{part}.refs.arrow") for part in parts}
    assert found.units > 3
    begin, read, given_away, gone = 0, [], {}, {}
    for unit in range(found.units):
        own = UnitPlan.read(wanted.directory, unit, keep_dropped=True)
        read += [(path, number) for path, first, end in own.pieces for number in range(first, end)]
        count = sum(
            batches[path].get_batch(number).num_rows
            for path, first, end in own.pieces
            for number in range(first, end)
        )
        rows = own.duplicates.to_pylist()
        gone |= {row["number"]: (unit << 32) + row["row"] for row in rows if row["reason"]}
        given_away |= {row["number"]: begin + row["row"] for row in rows if not row["reason"]}
        kept = own.kept["row"].to_pylist()
        dropped = [row["row"] for row in rows if row["reason"]]
        assert sorted(kept + dropped) == list(range(count))
        assert {row["row"] for row in rows if not row["reason"]} <= set(kept)
        begin += count
    assert read == [
        (part, number) for part in parts for number in range(batches[part].num_record_batches)
    ]
    assert begin == 300
    assert gone == {number: number for number in gone}
    assert given_away.keys() == gone.keys()
    assert len(gone) == sum(found.dropped.values()) == sum(found.pairs.values()) > 50
    assert int(found.documents) + len(gone) == 300
    assert not list((tmp_path / "plans").glob("cloze-plan-*"))


def test_shards_of_any_number_share_the_places():
    key = np.arange(20_000, dtype=np.uint64)
    counts = np.bincount(shard_of(shard_position(key), 7), minlength=7)
    assert counts.sum() == 20_000
    assert counts.min() > 2500
    heldout = random_keys.uniform(random_keys.splitmix64(key)) < 0.02
    assert (
        np.bincount(shard_of(shard_position(key[heldout]), 7), minlength=7).min() > 20
    )  # held-out documents are in all shards


def test_an_object_store_gives_the_same_bytes(tmp_path):
    """Parts are read by ranges there, not mapped; `memory://` stands for a store."""
    import fsspec

    source = write_jsonl(
        tmp_path / "a.jsonl", *(prose(n) for n in range(12)), prose(1) + "\n\nOne line more."
    )
    here = make(tmp_path / "here", f"jsonl={source}", shard_bytes=4096, keep_dropped=True)
    place_ = "memory://corpus-parts/there"
    there = make(place_, f"jsonl={source}", shard_bytes=4096, keep_dropped=True)
    assert there.manifest.content_sha256 == here.manifest.content_sha256
    fsspec.filesystem("memory").rm("/corpus-parts", recursive=True)
