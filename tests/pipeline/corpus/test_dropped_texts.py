"""What the corpus stage leaves out: counted, kept to be looked at, limited, and never of the
held-out text's doubles.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

from cloze.core.artifacts import artifact
from cloze.core.errors import DataError
from cloze.pipeline.corpus import signatures, sources, stage
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.duplicates import unit_plans as plans
from cloze.pipeline.corpus.files.intermediate import DROPPED_SCHEMA
from cloze.pipeline.corpus.files.shards import CorpusShards
from cloze.pipeline.corpus.read import read_and_clean
from cloze.pipeline.corpus.stage import STAGE
from tests.pipeline.corpus.corpora import make, prose, rows, write_jsonl


@pytest.fixture(scope="module")
def mixed(samples, tmp_path_factory):
    """A corpus of several sources with everything dropped that can be, and kept to be looked at."""
    base = tmp_path_factory.mktemp("mixed")
    texts = [prose(n) for n in range(8)]
    task = (
        "Here stands the question of the task that nobody may read in the corpus before it is "
        "asked."
    )
    lines = [
        *texts,
        texts[0].upper(),
        texts[1] + "\n\nAnd one more line at the end.",
        "Too short.",
        "12345 67890 " * 60,
        f"{prose(30)}\n\n{task}",
    ]
    write_jsonl(base / "a.jsonl", *lines)
    (base / "task.txt").write_text(task + "\n")
    sources = [f"jsonl={base}/a.jsonl", f"wikipedia={samples}/wikipedia"]
    settings = {"decontaminate": [str(base / "task.txt")], "shard_bytes": 16384}
    return {
        "plain": make(base / "plain", *sources, **settings),
        "kept": make(base / "kept", *sources, keep_dropped=True, **settings),
        "two": make(base / "two", *reversed(sources), keep_dropped=True, **settings),
    }


def test_read_is_kept_and_dropped(mixed):
    for result in mixed.values():
        counters = result.manifest.counters
        dropped = {name: count for name, count in counters.items() if name.startswith("dropped/")}
        assert counters["read/documents"] == counters["kept/documents"] + sum(dropped.values())
        assert {
            "exact_duplicate",
            "near_duplicate",
            "too_short",
            "not_prose",
            "contaminated",
            "redirect",
        } <= {name.removeprefix("dropped/") for name in dropped}
        assert result.manifest.summary["contaminated"] == {"task.txt": 1}
        assert result.manifest.summary["duplicates"] == {
            "exact": 2,
            "near": 2,
            "same_id": 0,
            "groups": 4,
        }  # one of each is in the samples


def test_dropped_text_is_kept_with_its_reason(mixed):
    result = mixed["kept"]
    found = rows(result, "dropped/*.arrow")
    counters = result.manifest.counters
    by_reason = Counter(row["reason"] for row in found if row["scope"] == "document")
    for reason in ("exact_duplicate", "near_duplicate", "too_short", "not_prose", "contaminated"):
        assert by_reason[reason] == counters[f"dropped/{reason}"], reason
    lines = Counter(row["reason"] for row in found if row["scope"] == "line")
    for reason in ("formula", "heading", "section", "list_item", "fragment"):
        assert lines[reason] == counters.get(f"dropped_lines/{reason}", 0), reason
    left_out = [row["text"] for row in found if row["step"] == "read"]
    assert left_out
    assert not any("''" in text or "[[" in text for text in left_out)
    texts = {row["reason"]: row for row in found if row["source"] == "jsonl"}
    assert texts["too_short"]["text"] == "Too short."
    assert {texts["exact_duplicate"]["id"], texts["exact_duplicate"]["detail"]} == {
        "jsonl/a.jsonl/d0",
        "jsonl/a.jsonl/d8",
    }
    kept = {row["id"] for row in rows(result)}
    assert {texts["exact_duplicate"]["detail"], texts["near_duplicate"]["detail"]} <= kept
    assert {row["id"] for row in found if row["scope"] == "document"} & kept == set()
    assert texts["contaminated"]["detail"].startswith("here stands the question of the task")
    assert texts["contaminated"]["step"] == "decontaminate"


def test_dropped_text_is_in_the_manifest_and_nobody_reads_it(mixed):
    result = mixed["kept"]
    names = {entry.path for entry in result.manifest.files}
    assert any(name.startswith("dropped/dropped-00000-of-") for name in names)
    assert artifact.verify(result.artifact).ok
    assert all(name.startswith("corpus-") for name in CorpusShards.open(result.artifact).names)
    shards = {path.name: path.read_bytes() for path in Path(result.artifact).glob("corpus-*.arrow")}
    assert shards == {
        path.name: path.read_bytes()
        for path in Path(mixed["plain"].artifact).glob("corpus-*.arrow")
    }
    assert not (Path(mixed["plain"].artifact) / "dropped").exists()
    assert pa.ipc.open_file(
        next((Path(result.artifact) / "dropped").glob("*.arrow"))
    ).schema.equals(DROPPED_SCHEMA, check_metadata=True)


def test_dropped_text_is_the_same_bytes_in_any_order(mixed):
    assert mixed["two"].manifest.content_sha256 == mixed["kept"].manifest.content_sha256
    for name in ("card.html", "card.json"):
        assert (Path(mixed["two"].artifact) / name).read_bytes() == (
            Path(mixed["kept"].artifact) / name
        ).read_bytes()


def test_dropped_text_of_many_runs_and_destinations(tmp_path, monkeypatch):
    """The original of a duplicate may be in another unit's files."""
    texts = [prose(n) for n in range(40)]
    source = tmp_path / "source"
    source.mkdir()
    write_jsonl(source / "a.jsonl", *texts, *(f"{n} " * 400 for n in range(50)))
    write_jsonl(source / "b.jsonl", *(f"{text}\n\nAnd so it ends, they say." for text in texts))
    write_jsonl(source / "c.jsonl", *map(str.upper, texts))
    settings = {"keep_dropped": True, "shard_bytes": 2048}
    whole = make(tmp_path / "whole", f"jsonl={source}", **settings)
    monkeypatch.setattr(sources, "run_bytes", lambda total, least: 0)
    monkeypatch.setattr(read_and_clean, "BATCH_BYTES", 4096)
    monkeypatch.setattr(plans, "run_bytes", lambda total, least: 9000)
    monkeypatch.setattr(stage, "destination_count", lambda total, runs: 7)
    cut = make(tmp_path / "cut", f"jsonl={source}", **settings)
    assert cut.manifest.content_sha256 == whole.manifest.content_sha256
    found = rows(cut, "dropped/*.arrow")
    dropped = [row for row in found if row["step"] == "dedup"]
    kept = {row["id"] for row in rows(cut)}
    assert len(dropped) == 80
    assert {row["detail"] for row in dropped} <= kept
    assert len(found) == cut.manifest.counters["dropped_texts/rows"] == 130


def test_text_of_tasks_takes_paragraphs_where_that_is_wanted(tmp_path):
    task = (
        "Here stands the question of the task that nobody may read in the corpus before it is "
        "asked."
    )
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "dev.tsv").write_text(f"0\t{task}\t1\n")
    source = write_jsonl(tmp_path / "a.jsonl", f"{prose(1)}\n\n{task}", prose(2))
    result = make(
        tmp_path / "out",
        f"jsonl={source}",
        decontaminate=[str(tmp_path / "tasks")],
        decontaminate_unit="paragraph",
    )
    assert result.manifest.counters["dropped_lines/contaminated"] == 1
    assert result.manifest.rows == 2
    assert not any("question" in sentence for row in rows(result) for sentence in row["sentences"])
    with pytest.raises(DataError, match="contains no text of 8 words or more"):
        (tmp_path / "short.txt").write_text("Too few words.\n")
        make(tmp_path / "other", f"jsonl={source}", decontaminate=str(tmp_path / "short.txt"))


def test_the_fingerprint_is_of_the_tasks_bytes(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", prose(1))
    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dev.tsv").write_text(text)

    def fingerprint(*tasks):
        return STAGE.fingerprint(
            CorpusConfig(sources=[{"kind": "jsonl", "path": str(source)}], decontaminate=tasks), {}
        )

    one, same, other = (fingerprint(str(tmp_path / name / "dev.tsv")) for name in "abc")
    assert one == same
    assert one != other
    assert one != fingerprint()


def test_a_double_of_held_out_text_is_not_trained_on(tmp_path):
    """Every text stands in two sources; whichever stays, it stays once, so no text is on both
    sides.
    """
    texts = [prose(n) for n in range(60)]
    for name, change in (("a", lambda t: t), ("b", lambda t: t + "\n\nAnd so it ends, they say.")):
        write_jsonl(tmp_path / f"{name}.jsonl", *map(change, texts))
    result = make(
        tmp_path / "out",
        f"jsonl={tmp_path}/a.jsonl",
        f"jsonl={tmp_path}/b.jsonl",
        heldout_fraction=0.4,
    )
    sides = defaultdict(set)
    for row in rows(result):
        sides[row["sentences"][0]].add(row["split"])
    assert len(sides) == 60
    assert all(len(splits) == 1 for splits in sides.values())
    assert {split for splits in sides.values() for split in splits} == {"train", "heldout"}
    assert result.manifest.rows == 60


@pytest.mark.soak
def test_two_dumps_of_one_wiki(shared_data, tmp_path):
    """Most of the articles of 2014 and 2016 are kept once; against the Jaccard similarity of every
    pair of the same texts.
    """
    dumps = shared_data / "wikipedia" / "dumps"
    names = ("enwiki-2014-p10p10000", "enwiki-2016-p10p30302")
    result = make(
        tmp_path / "out",
        *(f"wikipedia={dumps / f'{name}.xml.bz2'}" for name in names),
        keep_dropped=True,
    )
    dropped = [row for row in rows(result, "dropped/*.arrow") if row["step"] == "dedup"]
    gone = {row["id"]: row["detail"] for row in dropped}
    texts = {row["id"]: row["text"] for row in dropped} | {
        row["id"]: " ".join(row["sentences"]) for row in rows(result)
    }
    articles = {row["id"]: row["title"] for row in [*dropped, *rows(result)]}
    old, new = ({title: id_ for id_, title in articles.items() if name in id_} for name in names)
    both = sorted(old.keys() & new.keys())
    merged = {title for title in both if old[title] in gone or new[title] in gone}
    assert len(old) >= 80
    assert len(merged) > len(old) / 2
    similar = {title: signatures.jaccard(texts[old[title]], texts[new[title]]) for title in both}
    for least, recall in ((0.8, 0.97), (0.7, 0.85)):
        alike = {title for title in both if similar[title] >= least}
        assert len(alike) >= 30
        assert len(alike & merged) >= recall * len(alike)
    assert all(
        signatures.jaccard(texts[id_], texts[of]) > 0.5 for id_, of in gone.items()
    )  # nothing goes for what it does not resemble
