"""Relations between marked entities: the official files, markers and truncation, training."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core.errors import DataError, UsageError
from cloze.labs.serving.classify import TextClassificationPipeline
from cloze.model import checkpoint
from cloze.model.families.hub_formats import hub_of
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.table import load_task
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.conftest import BAD, GOOD, NEUTRAL
from tests.model.tasks.stages import evaluate, finetune, settings
from tests.model.tasks.test_text_tasks import answers, read, write

MARKERS = {"markers": ["is", "is", "with", "with"]}  # words of the tiny vocabulary


def semeval(number: int, relation: str) -> str:
    return (
        f'{number}\t"The <e1>film{number}</e1> has a <e2>plot</e2>."\n{relation}\nComment: none.\n'
    )


def test_semeval_2010(tmp_path: Path) -> None:
    """Its training file is divided into train and dev; the test file may lack the relations."""
    place = tmp_path / "SemEval2010_task8_all_data"
    relations = ["Other", "Component-Whole(e2,e1)", "Cause-Effect(e1,e2)", "Other", "Other"] * 4
    write(place / "TRAIN_FILE.TXT", *(semeval(i, name) for i, name in enumerate(relations)))
    write(place / "TEST_FILE.txt", '8001\t"A <e1>cat</e1> in a <e2>hat</e2>."')
    train, dev = (read("semeval2010", tmp_path, split) for split in ("train", "dev"))
    assert (len(train), len(dev)) == (18, 2)
    assert train.label_names[0] == "Other"
    assert len(train.label_names) == 19
    assert train.texts[0].endswith("</e1> has a <e2>plot</e2>.")
    assert set(answers(train)) == set(relations)
    assert read("semeval2010", tmp_path, "test").labels is None
    write(place / "TEST_FILE_FULL.TXT", semeval(8001, "Entity-Origin(e2,e1)"))
    assert answers(read("semeval2010", tmp_path, "test")) == ["Entity-Origin(e2,e1)"]


def test_tacred(tmp_path: Path) -> None:
    row = {
        "id": "e7798fb9", "docid": "AFP", "relation": "per:title",
        "token": ["-LRB-", "CFO", "Douglas", "Flint", "will", "become", "chairman", "-RRB-"],
        "subj_start": 2, "subj_end": 3, "obj_start": 6, "obj_end": 6, "subj_type": "PERSON",
        "obj_type": "JOB_TITLE", "stanford_pos": [], "stanford_head": [],
    }  # fmt: skip
    rows = [row, row | {"id": "2", "relation": "no_relation"}, row | {"id": "3"}]
    (tmp_path / "dev.json").write_text(json.dumps(rows))
    examples = read("tacred", tmp_path)
    assert examples.texts[0] == (
        "( CFO <e1:PERSON>Douglas Flint</e1> will become <e2:JOB_TITLE>chairman</e2> )"
    )
    assert examples.label_names == ("no_relation", "per:title")
    task = load_task("tacred")
    guess = np.eye(2, dtype=np.float32)[[1, 0, 0]]
    assert task.score(examples, guess) == {
        "micro_f1": pytest.approx(2 / 3),
        "accuracy": pytest.approx(2 / 3),
    }
    (tmp_path / "dev.json").write_text(json.dumps([row, {"id": "4"}]))
    with pytest.raises(DataError, match=r"dev\.json, example 2: not an example of TACRED"):
        read("tacred", tmp_path)

    for outside in ({"subj_start": -1, "subj_end": -1}, {"obj_start": 7}, {"obj_end": 8}):
        (tmp_path / "dev.json").write_text(json.dumps([row | outside]))
        with pytest.raises(DataError, match=r"example 1: not an example of TACRED .*of 8 words"):
            read("tacred", tmp_path)


def test_scibert_s_relations_are_marked_by_brackets(tmp_path: Path) -> None:
    texts = ["<< EPI-hNE4 >> inhibits [[ elastase ]] .", "[[ x ]] and << y >> ."]
    write(
        tmp_path / "chemprot" / "dev.txt",
        *({"text": text, "label": "INHIBITOR", "metadata": []} for text in texts),
    )
    assert list(read("chemprot", tmp_path).texts) == [
        "<e1> EPI-hNE4 </e1> inhibits <e2> elastase </e2> .",
        "<e2> x </e2> and <e1> y </e1> .",
    ]


def test_wic_marks_the_word_in_both_sentences(tmp_path: Path) -> None:
    row = {
        "word": "place", "sentence1": "Do you want to come over to my place?", "idx": 0,
        "sentence2": "A political system with no place.", "label": False, "start1": 31,
        "start2": 27, "end1": 36, "end2": 32, "version": 1.1,
    }  # fmt: skip
    write(tmp_path / "WiC" / "val.jsonl", row)
    examples = read("wic", tmp_path)
    assert list(examples.texts) == ["Do you want to come over to my <e1>place</e1>?"]
    assert list(examples.text_pairs) == ["A political system with no <e2>place</e2>."]
    for outside in ({"start1": 400, "end1": 405}, {"start1": -6, "end1": -1}, {"end1": 30}):
        write(tmp_path / "WiC" / "val.jsonl", row | outside)
        with pytest.raises(DataError, match="line 1: not an example of WiC .*of 37 characters"):
            read("wic", tmp_path)


@pytest.mark.parametrize(
    "text", ["no tags", "<e1>a</e1> <e2>b", "<e1>a</e1> <e1>b</e1> <e2>c</e2>", "</e1>a<e1> <e2>"]
)
def test_an_example_without_two_entities_is_refused(text: str, tmp_path: Path) -> None:
    write(tmp_path / "dev.tsv", "text\tlabel", f"{text}\tx")
    with pytest.raises(DataError, match=r"dev\.tsv, line 2: no two entities"):
        read("relation", tmp_path)


def encoded(
    pieces: Tokenizer, text: str, max_length: int, pair: str | None = None, **options: Any
) -> tuple[list[str], list[str], Any]:
    """Return the tokens of a text, those at the marks, and its samples."""
    task = load_task("relation", {**MARKERS, **options})
    pairs = None if pair is None else [pair]
    examples = LabelledTexts(texts=[text], text_pairs=pairs, labels=None, label_names=("a", "b"))
    samples = task.encode(examples, pieces, max_length)
    tokens = [pieces.backend.id_to_token(token) for token in samples.sequences[0].tolist()]
    marks = samples.batch([0], "rows")["marks"][0].tolist()  # type: ignore[typeddict-item]
    return tokens, [tokens[mark] for mark in marks], samples


def test_markers_replace_the_tags_and_are_where_the_classifier_reads(pieces: Tokenizer) -> None:
    tokens, marks, _ = encoded(pieces, "the <e2>film</e2> and <e1>good plot</e1>.", 32)
    assert tokens == [
        *("[CLS]", "the", "with", "film", "with", "and", "is", "good", "plot", "is", ".", "[SEP]"),
    ]
    assert marks == ["is", "with"]
    tokens, marks, _ = encoded(pieces, "<e1>good</e1> film", 32, "a <e2>bad</e2> one")
    assert tokens[:7] == ["[CLS]", "is", "good", "is", "film", "[SEP]", "a"]
    assert (tokens[7], marks) == ("with", ["is", "with"])
    typed = "<e1:VERY_GOOD>film</e1> <e2:BAD>plot</e2>"
    assert "very" not in encoded(pieces, typed, 32)[0]
    assert encoded(pieces, typed, 32, typed=True)[0][3:5] == ["very", "good"]
    with pytest.raises(UsageError, match="markers has '@', which the vocabulary lacks"):
        encoded(pieces, typed, 32, markers=["@", "@", "#", "#"])


def test_long_texts_lose_the_middle_and_not_the_markers(pieces: Tokenizer) -> None:
    middle = " ".join(["the"] * 40)
    text = f"{middle} <e1>good</e1> {middle} <e2>bad</e2> {middle}"
    tokens, marks, samples = encoded(pieces, text, 16)
    assert (len(tokens), samples.truncated, samples.dropped_counts) == (16, 1, {})
    assert marks == ["is", "with"]
    assert {"good", "bad"} <= set(tokens)
    many = " ".join(["good"] * 40)
    tokens, marks, _ = encoded(pieces, f"<e1>{many}</e1> <e2>bad</e2>", 12)
    assert (tokens.count("is"), tokens.count("with"), marks) == (2, 2, ["is", "with"])
    _, marks, samples = encoded(pieces, text, 4)
    assert samples.dropped_counts == {"marker": 1}
    assert marks == ["is", "[CLS]"], "a marker that does not fit is read at [CLS]"


def relations(folder: Path) -> Path:
    """Examples that are `better` if the first entity is a good word, and `worse` if it is a bad one."""
    draw = random.Random(5)
    for split, count in (("train", 200), ("dev", 40)):
        rows = []
        for _ in range(count):
            better = draw.random() < 0.5
            words = [
                draw.choice(NEUTRAL),
                f"<e1>{draw.choice(GOOD if better else BAD)}</e1>",
                f"<e2>{draw.choice(NEUTRAL)}</e2>",
            ]
            draw.shuffle(words)
            rows.append({"text": " ".join(words), "label": "better" if better else "worse"})
        write(folder / f"{split}.jsonl", *rows)
    return folder


def test_a_relation_is_learned_and_classified_and_not_exported(
    pretrained: str, tmp_path: Path
) -> None:
    data = relations(tmp_path / "data")
    tuned = finetune(
        settings(data, task="relation", options=MARKERS, epochs=16, baselines=False),
        pretrained,
        tmp_path / "tuned",
    )
    assert tuned.manifest.summary["metrics"]["accuracy"] > 0.95
    evaluated = evaluate(tmp_path / "tuned", tmp_path / "dev", data=str(data), resamples=20)
    assert evaluated.manifest.summary["metrics"] == tuned.manifest.summary["metrics"]
    classifier = TextClassificationPipeline(str(tmp_path / "tuned"))
    text = "the <e1>awful</e1> film and <e2>plot</e2>"
    assert classifier.classify([text])[0][0]["label"] == "worse"
    with pytest.raises(DataError, match="text 1: no two entities"):
        classifier.classify(["no tags"])
    loaded = checkpoint.load(str(tmp_path / "tuned" / "checkpoint"))
    with pytest.raises(DataError, match="relation.* no Hugging Face class"):
        hub_of("bert").to_config(loaded.model, loaded.heads, loaded.task)
