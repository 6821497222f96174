"""Intermediate files in a store: several hosts together read each byte about once, and the shards
have the bytes of those that one host writes on a disk.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.pipeline.corpus.files import shards as corpus_shards
from cloze.pipeline.dataset import build, ranges
from tests.object_store import Store
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import make, write_vocab
from tests.slices import few

pytestmark = pytest.mark.usefixtures("warm")

HOSTS = 3
HOST = """
import json, pickle, sys, cloze
write, units = pickle.load(sys.stdin.buffer)
print(json.dumps([write(unit) for unit in units]))
"""


def by_hosts(directory: Path) -> Callable[..., list[dict[str, Any]]]:
    """Return a fan-out whose workers of the second step share no disk."""
    fan_out = build.fan_out

    def spread(build_context: Any, step: str, units: Any, function: Any, **given: Any) -> Any:
        if step != "shards":
            return fan_out(build_context, step, units, function, **given)
        results: dict[str, dict[str, Any]] = {}
        for number in range(HOSTS):
            own = units[number::HOSTS]
            (directory / f"host-{number}").mkdir(exist_ok=True)
            done = subprocess.run(
                [sys.executable, "-c", HOST],
                input=pickle.dumps((function, [unit for _, unit in own])),
                env=os.environ | {"TMPDIR": str(directory / f"host-{number}")},
                stdout=subprocess.PIPE,
                check=True,
            )
            results |= zip([name for name, _ in own], json.loads(done.stdout), strict=True)
        return [results[name] for name, _ in units]

    return spread


@pytest.mark.parametrize(("length_bins", "heldout"), few([(1, 40), (3, 40), (1, 0)], 3))
def test_hosts_read_together_little_more_than_the_parts(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    length_bins: int,
    heldout: int,
) -> None:
    documents = made_documents(300)
    held = [name for name, _ in documents[:heldout]]
    corpus = write_corpus(tmp_path / "corpus", documents, shards=5, heldout=held)
    vocab = write_vocab(tmp_path)
    monkeypatch.setattr(ranges, "PART_ROWS", 1)
    # pairs of sentences of 4 to 68 tokens: each length bin has many rows
    settings = {"length_bins": length_bins, "pairing": "sentence-pair", "length": 140}
    expected = make(corpus, vocab, tmp_path / "local", **settings)
    monkeypatch.setattr(build, "fan_out", by_hosts(tmp_path))
    monkeypatch.setattr(
        corpus_shards, "run_bytes", lambda total, least: total // 2
    )  # 5 shards in 3 runs
    store.server.requests.clear()
    made = make(corpus, vocab, store.path("made"), **settings)
    assert made.manifest.content_sha256 == expected.manifest.content_sha256
    assert made.manifest.counters == expected.manifest.counters
    runs = [r for r in store.server.requests if "/_scratch/parts/rows/run-" in r.key]
    runs = [request for request in runs if not request.key.endswith(".index")]
    assert len({request.key for request in runs}) == 3
    read = sum(r.read for r in runs) / sum(r.written for r in runs)
    assert 1 <= read <= 1.2
    assert (
        sum(request.kind == "get" for request in runs) <= 3 * 5 * length_bins
    )  # runs, shards and the held-out one
