"""A stage of the data that stops between any two of its steps goes on, to the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.core.config import parse_config
from cloze.core.errors import ClozeError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.stage import Stage
from cloze.labs.retrieval import index_build
from cloze.labs.retrieval.stages import INDEX
from cloze.pipeline.corpus.stage import STAGE as CORPUS
from cloze.pipeline.dataset import build as dataset_build
from cloze.pipeline.dataset.stage import STAGE as DATASET
from cloze.pipeline.runners import fan_out as fan_out_module
from cloze.pipeline.vocab import sample
from cloze.pipeline.vocab.stage import STAGE as VOCAB
from tests.pipeline.corpus.corpora import made_documents, prose, write_corpus, write_jsonl
from tests.pipeline.dataset.datasets import CONFIG, write_vocab


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw file, a corpus, a vocabulary."""
    base = tmp_path_factory.mktemp("stops")
    write_jsonl(base / "a.jsonl", *(prose(number) for number in (1, 2, 3, 3)))
    documents = made_documents(12, 8)
    write_corpus(base / "corpus", documents, 3, heldout=[documents[0][0]])
    write_vocab(base)
    return base


def corpus(place: Path) -> tuple[Stage, dict[str, Any], dict[str, str]]:
    sources = [{"kind": "jsonl", "path": str(place / "a.jsonl")}]
    return CORPUS, {"sources": sources, "keep_dropped": True}, {}


def vocab(place: Path) -> tuple[Stage, dict[str, Any], dict[str, str]]:
    return VOCAB, {"size": 200}, {"corpus": str(place / "corpus")}


def dataset(place: Path) -> tuple[Stage, dict[str, Any], dict[str, str]]:
    inputs = {"corpus": str(place / "corpus"), "vocab": str(place / "vocab.txt")}
    return DATASET, CONFIG, inputs


def index(place: Path) -> tuple[Stage, dict[str, Any], dict[str, str]]:
    return INDEX, {"passage_words": 20}, {"corpus": str(place / "corpus")}


@pytest.mark.parametrize(
    ("case", "module", "steps"),
    [
        (corpus, fan_out_module, ["read", "sort", "shards"]),
        (vocab, sample, ["rank", "take"]),
        (dataset, dataset_build, ["rows", "shards"]),
        (index, index_build, ["index"]),
    ],
)
def test_a_stop_after_any_step_changes_no_byte(
    case: Callable[[Path], tuple[Stage, dict[str, Any], dict[str, str]]],
    module: Any,
    steps: list[str],
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, settings, inputs = case(place)
    fan_out = module.fan_out
    ran: list[str] = []

    def build(out: str, stop_after: str = "") -> BuildResult:
        def stopping(build_context: Any, step: str, *arguments: Any, **given: Any) -> Any:
            results = fan_out(build_context, step, *arguments, **given)
            ran.append(step)
            if step == stop_after:
                raise ClozeError("stopped by the test")
            return results

        monkeypatch.setattr(module, "fan_out", stopping)
        config = parse_config(stage.config, settings, stage.name)
        return execute(stage, config, inputs, str(tmp_path / out))

    straight = build("straight").manifest.content_sha256
    assert ran == steps
    for step in steps:
        with pytest.raises(ClozeError, match="stopped by the test"):
            build(step, stop_after=step)
        assert not artifact.is_artifact(str(tmp_path / step))
        assert build(step).manifest.content_sha256 == straight, step
