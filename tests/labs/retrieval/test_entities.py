"""The stage entities: every sentence's entities, as the tagger finds them, and its dates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cloze.core.arrow import read_arrow
from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.labs.retrieval.entities import with_dates
from cloze.labs.retrieval.stages import ENTITIES, EntitiesConfig
from cloze.labs.serving.predictors import TokenClassificationPipeline
from cloze.model import checkpoint
from tests.pipeline.corpus.corpora import write_corpus
from tests.tiny_models import tiny_config, tiny_model, write_classifier, write_tokenizer

LABELS = ["O", "B-PER", "I-PER", "B-LOC"]
DOCUMENTS = [
    ("cats", ["the cat sat on the mat in 1967.", "", "a cat ran in the park."]),
    ("dogs", ["a dog walked in paris on 3 March 2001.", "the dog sat."]),
    ("paris", ["paris is the capital of a park."]),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("entities")
    backbone = tiny_model(4).state_dict()
    torch.manual_seed(4)
    head = {"token_classifier.weight": torch.randn(4, 16), "token_classifier.bias": torch.zeros(4)}
    names = [name for name in backbone if name.startswith(("encoder.", "pooler."))]
    checkpoint.save_weights(
        str(base / "tagger"),
        model=tiny_config(),
        state={**{name: backbone[name] for name in names}, **head},
        tokenizer=write_tokenizer(base),
        heads={"token_classifier": {"num_labels": 4}},
        task={
            "name": "conll2003",
            "labels": LABELS,
            "scheme": "iob2",
            "options": {},
            "max_length": 24,
        },
    )
    checkpoint.finalize(str(base / "tagger"))
    corpus = write_corpus(base / "corpus", DOCUMENTS, 2)
    return {"corpus": corpus, "checkpoint": str(base / "tagger")}


def test_the_spans_are_those_of_the_tagger_and_the_dates(inputs, tmp_path: Path) -> None:
    execution, config = Execution(device="cpu", threads=1), EntitiesConfig(precision="fp32")
    done = [
        execute(ENTITIES, config, inputs, str(tmp_path / name), execution=execution)
        for name in ("one", "two")
    ]
    assert done[0].manifest.content_sha256 == done[1].manifest.content_sha256
    tagger = TokenClassificationPipeline(inputs["checkpoint"])
    expected, found = set(), set()
    for shard in sorted(Path(inputs["corpus"]).glob("corpus-*.arrow")):
        for row in read_arrow(str(shard)).to_pylist():
            for number, sentence in enumerate(row["sentences"]):
                for span in with_dates(sentence, tagger.tag(sentence)):
                    expected.add((row["key"], number, *span))
    for shard in sorted((tmp_path / "one").glob("entities-*.arrow")):
        found |= {tuple(row.values()) for row in read_arrow(str(shard)).to_pylist()}
    assert found == expected
    summary = done[0].manifest.summary
    assert (summary["spans"], summary["sentences"]) == (len(expected), 6)
    assert sum(summary["types"].values()) == len(expected)
    assert summary["types"]["DATE"] >= 1
    assert len(summary["types"]) > 1


def test_another_checkpoint_is_refused(inputs, tmp_path: Path) -> None:
    other = write_classifier(tmp_path / "classifier", tmp_path)
    with pytest.raises(UsageError, match="tags no words"):
        execute(ENTITIES, EntitiesConfig(), {**inputs, "checkpoint": other}, str(tmp_path / "out"))
