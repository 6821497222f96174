"""Tasks on texts in the official files of their authors: what is read from a few lines of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core.errors import DataError
from cloze.model.tasks.kinds.answers import exact_matches
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import check_labelled


def write(path: Path, *lines: str | dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")


def read(task: str, path: Path, split: str = "dev", **options: Any) -> Any:
    return load_task(task, options).read(str(path), split, None)


def answers(examples: Any) -> list[str]:
    return [examples.label_names[label] for label in examples.labels]


SNLI = {"annotator_labels": ["neutral"], "captionID": "1.jpg#4", "pairID": "1.jpg#4r1n"}
SNLI_TEXT = "\t".join(
    [
        *("gold_label", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse"),
        *("sentence2_parse", "sentence1", "sentence2", "captionID", "pairID"),
        *(f"label{number}" for number in range(1, 6)),
    ]
)


def test_snli_is_read_from_json_lines_and_from_text(tmp_path: Path) -> None:
    """Pairs on which the annotators disagree have the label `-`."""
    rows = [("entailment", "A man eats.", "A man."), ("-", "x", "y"), ("neutral", "A dog.", "It.")]
    write(
        tmp_path / "snli_1.0" / "snli_1.0_dev.jsonl",
        *(SNLI | {"gold_label": gold, "sentence1": a, "sentence2": b} for gold, a, b in rows),
    )
    lines = ("\t".join([gold, *"pppp", a, b, "1", "2", *"n    "]) for gold, a, b in rows)
    write(tmp_path / "snli_1.0" / "snli_1.0_test.txt", SNLI_TEXT, *lines)
    for split in ("dev", "test"):
        examples = read("snli", tmp_path, split)
        assert answers(examples) == ["entailment", "neutral"]
        assert (list(examples.texts), examples.text_pairs) == (
            ["A man eats.", "A dog."],
            ["A man.", "It."],
        )
        assert examples.dropped == {"without_a_label": 1}


def test_xnli_trains_on_mnli_and_filters_dev_by_language(tmp_path: Path) -> None:
    write(
        tmp_path / "XNLI-MT-1.0" / "multinli" / "multinli.train.en.tsv",
        "premise\thypo\tlabel",
        "One .\tTwo .\tcontradictory",
        "One .\tOne .\tentailment",
    )
    header = (
        "language gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse "
        "sentence2_parse sentence1 sentence2 promptID pairID genre label1 label2 label3 label4 "
        "label5 sentence1_tokenized sentence2_tokenized match"
    ).split()
    rows = [
        ["en", "neutral", *[""] * 4, "Yes", "No", *"1234567890t"],
        ["de", "contradiction", *[""] * 4, "Ja", "Nein", *"1234567890t"],
    ]
    write(tmp_path / "XNLI-1.0" / "xnli.dev.tsv", *("\t".join(row) for row in [header, *rows]))
    assert answers(read("xnli", tmp_path, "train")) == ["contradiction", "entailment"]
    assert list(read("xnli", tmp_path).texts) == ["Yes"]
    with pytest.raises(
        DataError, match=r"xnli\.dev\.tsv has no row with 'sw', but with '\w\w', '\w\w'"
    ):
        read("xnli", tmp_path, where={"language": "sw"})
    german = read("xnli", tmp_path, where={"language": "de"})
    assert (list(german.texts), answers(german)) == (["Ja"], ["contradiction"])


def test_sick_has_all_splits_in_one_file(tmp_path: Path) -> None:
    header = (
        "pair_ID sentence_A sentence_B entailment_label relatedness_score entailment_AB "
        "entailment_BA sentence_A_original sentence_B_original sentence_A_dataset "
        "sentence_B_dataset SemEval_set"
    ).split()
    rows = [
        ["1", "A kid plays", "A boy plays", "NEUTRAL", "4.5", *"abcdef", "TRAIN"],
        ["2", "A cat", "No cat", "CONTRADICTION", "3.2", *"abcdef", "TRIAL"],
        ["3", "A dog", "One dog", "ENTAILMENT", "4.9", *"abcdef", "TEST"],
    ]
    write(tmp_path / "SICK" / "SICK.txt", *("\t".join(row) for row in [header, *rows]))
    for split, text, label, score in (
        ("train", "A kid plays", "NEUTRAL", 4.5),
        ("dev", "A cat", "CONTRADICTION", 3.2),
        ("test", "A dog", "ENTAILMENT", 4.9),
    ):
        examples = read("sick-e", tmp_path, split)
        assert (list(examples.texts), answers(examples)) == ([text], [label])
        assert read("sick-r", tmp_path, split).scores.tolist() == [score]


def test_trees_give_sentences_or_phrases_and_five_or_two_classes(tmp_path: Path) -> None:
    tree = "(3 (2 It) (4 (2 's) (4 (3 -LRB-) (4 lovely\\/warm))))"
    for split in ("train", "dev"):
        write(tmp_path / "trees" / f"{split}.txt", tree, "(0 (2 so) (1 bad))", "(2 meh)")
    examples = read("sst5", tmp_path)
    assert list(examples.texts) == ["It 's ( lovely/warm", "so bad", "meh"]
    assert answers(examples) == ["3", "0", "2"]
    phrases = read("sst5", tmp_path, "train", splits={"train": {"where": {}}})
    assert len(phrases) == 7 + 3 + 1
    assert ("( lovely/warm", "4") in zip(phrases.texts, answers(phrases), strict=True)
    two = read("sst2-trees", tmp_path)
    assert (answers(two), two.dropped) == (["1", "0"], {"without_a_label": 1})


@pytest.mark.parametrize("line", ["(3 (2 a) (2 b)", "(3 a))", "a", "(7 a)"])
def test_a_broken_tree_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    write(tmp_path / "dev.txt", "(2 fine)", line)
    with pytest.raises(DataError, match=r"dev\.txt, line 2: "):
        read("sst5", tmp_path)


def test_superglue_s_texts(tmp_path: Path) -> None:
    question = {"question": "is it so", "passage": "It is -- so.", "idx": 7, "label": True}
    write(tmp_path / "BoolQ" / "val.jsonl", question, question | {"idx": 8, "label": False})
    bare = {name: value for name, value in question.items() if name != "label"}
    write(tmp_path / "BoolQ" / "test.jsonl", bare)
    assert answers(read("boolq", tmp_path)) == ["true", "false"]
    assert read("boolq", tmp_path, "test").labels is None
    pair = {"premise": "Some cats ran.", "hypothesis": "Cats ran.", "label": "entailment", "idx": 0}
    write(tmp_path / "CB" / "val.jsonl", pair)
    assert answers(read("cb", tmp_path)) == ["entailment"]
    assert load_task("cb").metrics == ("macro_f1", "accuracy")


def test_babylm_s_files_have_texts_from_several_columns(tmp_path: Path) -> None:
    folder = tmp_path / "glue_filtered"
    answer = {"paragraph": "A passage.", "question": "Who ran?", "answer": "Bob", "idx": {"a": 0}}
    write(folder / "multirc.valid.jsonl", answer | {"label": 1}, answer | {"label": 0})
    examples = read("babylm-multirc", tmp_path)
    assert examples.texts[0] == "Question: Who ran? Answer: Bob"
    assert (examples.text_pairs[0], answers(examples)) == ("A passage.", ["1", "0"])
    reference = {"text": "Ann saw {it}.", "span1_text": "Ann", "span2_text": "it", "label": 0}
    write(folder / "wsc.valid.jsonl", reference)
    examples = read("babylm-wsc", tmp_path)
    assert list(examples.texts) == ['Does "it" refer to "Ann" in this passage?']
    assert list(examples.text_pairs) == ["Ann saw {it}."]
    with pytest.raises(DataError, match=r"no column 'answers' .*paragraph, question, answer"):
        read("babylm-multirc", tmp_path, columns={"text": "{question} {answers}"})
    write(folder / "multirc.valid.jsonl", answer | {"{own}": "Mine.", "label": 1})
    examples = read("babylm-multirc", tmp_path, columns={"text": "{own}"})
    assert list(examples.texts) == ["Mine."]


def test_copa_joins_cause_and_effect_with_the_alternatives(tmp_path: Path) -> None:
    row = {
        "premise": "The man ran.", "choice1": "He was late.", "choice2": "He sat.",
        "question": "cause", "label": 0, "idx": 0,
    }  # fmt: skip
    write(tmp_path / "COPA" / "val.jsonl", row, row | {"question": "effect", "label": 1, "idx": 1})
    examples = read("copa", tmp_path)
    assert list(examples.labels) == [0, 1]
    assert [own[0] for own in examples.endings] == ["because He was late.", "so He was late."]


def test_arct_pairs_claim_and_reason_with_two_warrants(tmp_path: Path) -> None:
    header = "#id warrant0 warrant1 correctLabelW0orW1 reason claim debateTitle debateInfo".split()
    row = ["1_2", "they work hard", "they do not", "0", "Tips help", "To tip", "Tip?", "Should we"]
    write(tmp_path / "arct" / "dev.tsv", "\t".join(header), "\t".join(row))
    examples = read("arct", tmp_path)
    assert list(examples.contexts) == ["To tip"]
    assert list(examples.endings[0]) == ["Tips help they work hard", "Tips help they do not"]
    assert (list(examples.labels), examples.ids) == ([0], ["1_2"])


def test_multirc_s_questions_are_right_if_all_their_answers_are(tmp_path: Path) -> None:
    def question(number: int, *labels: int) -> dict[str, Any]:
        texts = [{"text": f"a{i}", "idx": i, "label": label} for i, label in enumerate(labels)]
        return {"question": f"Q{number}?", "answers": texts, "idx": number}

    passage = {"text": "A passage.", "questions": [question(0, 1, 0), question(1, 0, 1, 1)]}
    write(tmp_path / "MultiRC" / "val.jsonl", {"idx": 3, "version": 1.1, "passage": passage})
    task = load_task("multirc")
    examples = task.read(str(tmp_path), "dev", None)
    assert examples.text_pairs[:2] == ["Q0? a0", "Q0? a1"]
    assert examples.ids == ["3-0-0", "3-0-1", "3-1-0", "3-1-1", "3-1-2"]
    right = np.eye(2, dtype=np.float32)[[1, 0, 0, 1, 0]]  # the last one of the second is wrong
    assert exact_matches(examples, right).tolist() == [1, 0]
    scores = task.score(examples, right)
    assert scores == {"f1": pytest.approx(4 / 5), "exact_match": 0.5}
    details = task.detailed_metrics(examples, right, seed=1, resamples=50)
    assert set(details["interval"]) == {"f1", "exact_match"}


def test_wsc_s_candidates_for_a_pronoun_are_one_choice(tmp_path: Path) -> None:
    text = "The cup fell off the mat because it was slippery ."

    def row(candidate: str, label: bool, text: str = text) -> dict[str, Any]:
        target = {
            "span1_index": 0, "span1_text": candidate, "span2_index": 7, "span2_text": "it",
        }  # fmt: skip
        return {"text": text, "target": target, "idx": 0, "label": label}

    def beside(place: int, candidate: str) -> dict[str, Any]:
        """SuperGLUE's own val split has such an index; its candidates would be the same text."""
        found = row(candidate, candidate == "the mat")
        return {**found, "target": {**found["target"], "span2_index": place}}

    write(
        tmp_path / "WSC" / "val.jsonl",
        row("The cup", False),
        row("the mat", True),
        row("The cup", True, f"{text} Yes ."),
        *(beside(place, candidate) for place in (6, -2) for candidate in ("The cup", "the mat")),
    )
    examples = read("wsc", tmp_path)
    assert list(examples.contexts) == [text]
    assert examples.endings[0][1] == "The cup fell off the mat because the mat was slippery ."
    dropped = {"one_candidate": 1, "pronoun_elsewhere": 4}
    assert (list(examples.labels), examples.dropped) == ([1], dropped)
    write(tmp_path / "WSC" / "val.jsonl", beside(6, "The cup"), beside(6, "the mat"))
    with pytest.raises(DataError, match=r"no examples \(dropped: 2 pronoun_elsewhere\)"):
        check_labelled(read("wsc", tmp_path), "dev")


def test_citation_intents_of_acl_arc(tmp_path: Path) -> None:
    row = {"text": "We use MaltParser (Nivre, 2004).", "intent": "Uses", "citing_paper_id": "A1"}
    write(tmp_path / "acl-arc" / "train.jsonl", row, row | {"intent": "Background"})
    assert answers(read("acl-arc", tmp_path, "train")) == ["Uses", "Background"]
