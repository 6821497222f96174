"""Units of corpus and dataset in any order and of any size, killed at any point and done twice: the
same bytes.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import IO, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cloze.core import storage
from cloze.core.stages.execute import BuildResult
from cloze.pipeline.corpus import sources, stage
from cloze.pipeline.corpus.duplicates import unit_plans as plans
from cloze.pipeline.corpus.files import shards as corpus_shards
from cloze.pipeline.corpus.read import read_and_clean
from cloze.pipeline.dataset import build, ranges
from cloze.pipeline.runners import exchange, fan_out
from tests.pipeline.corpus.corpora import made_documents, prose, write_corpus, write_jsonl
from tests.pipeline.corpus.corpora import make as make_corpus
from tests.pipeline.dataset.datasets import make as make_dataset
from tests.pipeline.dataset.datasets import write_vocab


class Killed(Exception):
    """The worker is gone."""


@contextlib.contextmanager
def dying(writes: int) -> Iterator[None]:
    """Raise `Killed` before the file with this number gets its name."""
    left, real = writes, storage.atomic_output

    @contextlib.contextmanager
    def output(path: str, *given: Any, **options: Any) -> Iterator[IO[bytes]]:
        nonlocal left
        with real(path, *given, **options) as handle:
            yield handle
            left -= 1
            if left < 0:
                raise Killed

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(storage, "atomic_output", output)
        yield


def disorderly(chance: Random) -> Callable[..., list[dict[str, Any]]]:
    """Return a fan-out in this process: units in any order, some of them killed or repeated."""

    def run(
        begun: Any, step: str, units: list[tuple[str, Any]], function: Any, **_: Any
    ) -> list[dict[str, Any]]:
        results: dict[str, dict[str, Any]] = {}
        for name, unit in chance.sample(units, len(units)):
            for writes in chance.choices(range(5), k=chance.randrange(2)):
                with dying(writes):
                    pickle.loads(pickle.dumps(function))(json.loads(json.dumps(unit)))
            result = pickle.loads(pickle.dumps(function))(json.loads(json.dumps(unit)))
            results[name] = json.loads(json.dumps(result))
        assert len(results) == len(units)
        return [results[name] for name, _ in units]

    return run


def same(
    data: st.DataObject, expected: BuildResult, make: Callable[[Path], BuildResult]
) -> BuildResult:
    """Make an artifact in disorder and compare it."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        # Of one number: the orders of some hundred units are too much to draw.
        chance = Random(data.draw(st.integers(0, 1 << 32), label="seed"))
        for module in (fan_out, build, exchange):
            patch.setattr(module, "fan_out", disorderly(chance))
        limit = st.sampled_from([1, 2000, 9000, 1 << 20])
        for module, name in (
            (exchange, "SORTED_BYTES"),
            (exchange, "EXTENTS_BYTES"),
            (read_and_clean, "BATCH_BYTES"),
            (ranges, "BUCKET_TOKENS"),
        ):
            patch.setattr(module, name, data.draw(limit, label=name))
        for module in (sources, plans, corpus_shards):
            most = data.draw(st.sampled_from([5000, 20_000, 1 << 20]), label="run_bytes")
            patch.setattr(module, "run_bytes", lambda total, least=0, most=most: most)
        destinations = data.draw(st.integers(1, 9), label="destinations")
        patch.setattr(stage, "destination_count", lambda total, runs: destinations)
        made = make(Path(directory) / "made")
        assert made.manifest.content_sha256 == expected.manifest.content_sha256
        assert made.manifest.counters == expected.manifest.counters
        assert made.manifest.summary == expected.manifest.summary
    return made


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with copies and edited copies within and between them."""
    directory: Path = tmp_path_factory.mktemp("texts")
    for number in range(4):
        own = [prose(n) for n in range(5 * number, 5 * number + 8)]
        own += [own[0].upper(), f"{own[1]}\n\nAnd one more line at the end.", "Too short."]
        write_jsonl(directory / f"{number}.jsonl", *own)
    return directory


SETTINGS: tuple[dict[str, Any], ...] = (
    {"keep_dropped": True},
    {"max_words": "3k", "mixture_epochs": 3},
)


@pytest.fixture(scope="module", params=SETTINGS, ids=["dropped", "mixture"])
def corpus(
    request: pytest.FixtureRequest, texts: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], BuildResult]:
    given = {**request.param, "shard_bytes": 2048}
    return given, make_corpus(tmp_path_factory.mktemp("corpus"), f"jsonl={texts}", **given)


@given(st.data())
@settings(max_examples=6, deadline=None, phases=[Phase.generate])
def test_a_corpus(
    texts: Path, corpus: tuple[dict[str, Any], BuildResult], data: st.DataObject
) -> None:
    given, expected = corpus
    assert expected.manifest.summary["shards"] > 5
    same(data, expected, lambda out: make_corpus(out, f"jsonl={texts}", **given))


@pytest.fixture(scope="module", params=[1, 3])
def dataset(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[str, str], dict[str, Any], BuildResult]:
    directory: Path = tmp_path_factory.mktemp("dataset")
    documents = made_documents(30)
    held = [name for name, _ in documents[:3]]
    inputs = (
        write_corpus(directory / "corpus", documents, shards=5, heldout=held),
        write_vocab(directory),
    )
    given = {"length_bins": request.param, "drawings": 2, "random_from": "corpus"}
    return inputs, given, make_dataset(*inputs, directory / "expected", **given)


@given(st.data())
@settings(max_examples=6, deadline=None, phases=[Phase.generate])
def test_a_dataset(
    dataset: tuple[tuple[str, str], dict[str, Any], BuildResult], data: st.DataObject
) -> None:
    inputs, given, expected = dataset
    same(data, expected, lambda out: make_dataset(*inputs, out, **given))
