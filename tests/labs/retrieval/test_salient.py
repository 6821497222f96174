"""Salient span masking: one named entity or date of a row, whole, from the spans of an artifact."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import storage
from cloze.core.arrow import write_arrow
from cloze.core.artifacts import artifact
from cloze.core.config import StageConfig, parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.stage import InputSpec, Stage, StageResult
from cloze.labs.retrieval.entities import with_dates
from cloze.labs.retrieval.salient import SPANS, spans_file_name
from cloze.model.data.masks import DynamicMasker
from cloze.pipeline.corpus.files.shards import CorpusShards, read_shard
from cloze.pipeline.dataset.config import DatasetConfig
from cloze.pipeline.dataset.masking.candidates import MaskConfig, UnmaskedRows
from cloze.pipeline.dataset.masking.draw import sample_masks
from cloze.pipeline.dataset.schema import DatasetInfo
from cloze.pipeline.dataset.stage import STAGE
from cloze.pipeline.tokenizer import load
from tests.pipeline.dataset.datasets import made_corpus, rows, write_vocab
from tests.pipeline.dataset.masking.rows import SPECIAL, TABLE, make_rows, masks_of

CAPITAL = re.compile(r"[A-Z]\w+")  # every such word is a "named entity" here


def write_spans(config: StageConfig, build: Any) -> StageResult:
    corpus = CorpusShards.open(build.inputs["corpus"])
    for name in corpus.names:
        found = [
            (row["key"], number, *match.span(), "NAME")
            for row in read_shard(corpus.file(name)).to_pylist()
            for number, sentence in enumerate(row["sentences"])
            for match in CAPITAL.finditer(sentence)
        ]
        columns = list(map(list, zip(*found, strict=True))) or [[]] * len(SPANS)
        write_arrow(build.file(spans_file_name(name)), SPANS, pa.table(columns, SPANS).to_batches())
    return StageResult()


CAPITALS = Stage(
    name="entities",
    version=1,
    config=StageConfig,
    run=write_spans,
    inputs={"corpus": InputSpec(required=True)},
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("salient")
    corpus = made_corpus(base / "corpus")
    execute(CAPITALS, StageConfig(), {"corpus": corpus}, str(base / "entities"))
    return {"corpus": corpus, "vocab": write_vocab(base), "entities": str(base / "entities")}


def make(inputs: dict[str, str], out: Path, **values: Any) -> BuildResult:
    settings = {"recipe": "realm", "length": 32, "mask_copies": 6, "seed": 3, **values}
    return execute(STAGE, parse_config(DatasetConfig, settings, "dataset"), inputs, str(out))


def spans_of(marks: list[int]) -> list[tuple[int, ...]]:
    """Positions of the spans of a row, by the definition of the marks."""
    spans: list[list[int]] = []
    for position, mark in enumerate(marks):
        if mark == 1 or (mark == 2 and (position == 0 or marks[position - 1] == 0)):
            spans.append([position])
        elif mark == 2:
            spans[-1].append(position)
    return [tuple(span) for span in spans]


def marked(lengths: list[int], seed: int) -> UnmaskedRows:
    made = make_rows(lengths, seed)
    marks = np.random.default_rng(seed).choice([0, 0, 1, 2, 2], len(made.input_ids))
    marks[np.isin(made.input_ids, list(SPECIAL.ids))] = 0
    return replace(made, marks=marks.astype(np.uint8))


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(5, 60), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    most=st.integers(1, 5),
)
def test_one_span_of_the_row_is_masked_whole(lengths, seed, most):
    made = marked(lengths, seed)
    config = MaskConfig(rule="salient", max_predictions=most, mask_share=0.5, random_share=0)
    masks = masks_of(sample_masks(made, config, TABLE, range(40)), len(lengths), 40)
    for row, of_row in enumerate(masks):
        assert made.marks is not None
        marks = made.marks[made.offsets[row] : made.offsets[row + 1]].tolist()
        spans = {span for span in spans_of(marks) if len(span) <= most}
        drawn = {tuple(position for position, _ in mask) for mask in of_row}
        assert drawn <= spans if spans else drawn == {()}
        if len(spans) < 4:
            assert drawn == (spans or {()})  # all are drawn
        for mask in of_row:  # replaced as one
            kinds = {"mask" if token == SPECIAL.mask else "other" for _, token in mask}
            assert len(kinds) <= 1
        alone = sample_masks(made.slice(row, row + 1), config, TABLE, [7])
        assert masks_of(alone, 1, 1)[0][0] == of_row[7]


def test_the_masks_of_a_dataset_are_the_entities_of_its_text(inputs, tmp_path):
    made = make(inputs, tmp_path / "dataset")
    tokenizer = load(storage.join(made.artifact, "tokenizer"))
    sentences = {
        row["key"]: row["sentences"]
        for shard in sorted(Path(inputs["corpus"]).glob("corpus-*.arrow"))
        for row in read_shard(str(shard)).to_pylist()
    }
    counts: Counter[int] = Counter()
    for row in rows(made):
        text = sentences[row["source"]["document"]]
        names = {
            tuple(tokenizer.encode_batch([name])[0])
            for sentence in text
            for name in CAPITAL.findall(sentence)
        }
        for mask in row["masks"]:
            counts[len(mask["positions"])] += 1
            assert set(mask["input_ids"]) <= {tokenizer.special.mask}
            target = tuple(row["input_ids"][position] for position in mask["positions"])
            # A row that begins or ends within an over-long sentence may cut a name.
            assert not target or target in names
    assert sum(counts.values()) - counts[0] > 500


def test_the_same_bytes_again_and_the_masks_differ_by_copy(inputs, tmp_path):
    made = [make(inputs, tmp_path / name) for name in ("one", "two")]
    assert made[0].manifest.content_sha256 == made[1].manifest.content_sha256
    chosen = [{tuple(mask["positions"]) for mask in row["masks"]} for row in rows(made[0])]
    assert max(map(len, chosen)) > 2


def test_the_spans_must_be_there_and_of_the_corpus(inputs, tmp_path):
    without = {name: path for name, path in inputs.items() if name != "entities"}
    with pytest.raises(UsageError, match="cloze tag-corpus"):
        make(without, tmp_path / "none")
    with pytest.raises(UsageError, match="must come together"):
        make(inputs, tmp_path / "token", recipe="bert")
    other = {**inputs, "corpus": made_corpus(tmp_path / "other", scrambled=False)}
    entry = next(iter(sorted(Path(other["corpus"]).glob("manifest.json"))))
    entry.write_text(
        entry.read_text().replace(artifact.read_manifest(inputs["corpus"]).fingerprint, "0" * 64)
    )
    with pytest.raises(UsageError, match="another corpus"):
        make(other, tmp_path / "third")


def test_dynamic_masks_are_refused(inputs, tmp_path):
    made = make(inputs, tmp_path / "dataset")
    (path, *_) = sorted(Path(made.artifact).glob("train-*.arrow"))
    info = DatasetInfo.from_schema(pa.ipc.open_file(str(path)).schema, str(path))
    with pytest.raises(UsageError, match="stores no entities"):
        DynamicMasker.of(made.artifact, info)


def test_dates() -> None:
    text = (
        "On 19 January 1967, in May 2001, on June 5th, the 3rd of March, in 1815 and 2010-02-03;"
        " not in 950, 3000, May or 12345."
    )
    found = [text[start:end] for start, end, _ in with_dates(text, [])]
    assert found == [
        "19 January 1967", "May 2001", "June 5th", "3rd of March", "1815", "2010-02-03",
    ]  # fmt: skip
    entity = {"start": text.index("January"), "end": text.index("January") + 7, "type": "PER"}
    spans = list(with_dates(text, [entity]))
    assert spans == sorted(spans)
    assert next(text[start:end] for start, end, _ in spans) == "January"
    assert (text.index("1815"), text.index("1815") + 4, "DATE") in spans
