"""Labels of words in the files that papers use: plain labels, CoNLL-U, BILOU, tags without types;
and the document around a sentence.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cloze.core.errors import DataError
from cloze.labs.serving.predictors import TokenClassificationPipeline
from cloze.model.layers.batch import IGNORE_INDEX
from cloze.model.tasks.encode import FIRST, encode_words, widen
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.kinds.tagging import Tags
from cloze.model.tasks.metrics import classification_intervals, tagging_scores
from cloze.model.tasks.table import load_task
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.conftest import BAD, GOOD
from tests.model.tasks.stages import evaluate, finetune, settings

CONLLU = """\
# newdoc id = weblog
# sent_id = weblog-1
# text = The cats can't wait.
1\tThe\tthe\tDET\tDT\tDefinite=Def\t2\tdet\t_\t_
2\tcats\tcat\tNOUN\tNNS\t_\t5\tnsubj\t_\t_
3-4\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
3\tca\tcan\tAUX\tMD\t_\t5\taux\t_\t_
4\tn't\tnot\tPART\tRB\t_\t5\tadvmod\t_\t_
5\twait\twait\tVERB\tVB\t_\t0\troot\t_\t_
5.1\twait\twait\tVERB\tVB\t_\t_\t_\t5:conj\t_
6\t.\t.\tPUNCT\t.\t_\t5\tpunct\t_\t_

# sent_id = weblog-2
1\tNew York\tNew York\tPROPN\tNNP\t_\t0\troot\t_\t_

# newdoc id = email
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_

"""


def test_universal_dependencies_are_read_without_comments_multiword_tokens_and_empty_nodes(
    tmp_path: Path,
) -> None:
    (tmp_path / "en_ewt-ud-dev.conllu").write_text(CONLLU, encoding="utf-8")
    task = load_task("ud-pos")
    read = task.read(str(tmp_path), "dev", None)
    assert read.words == [["The", "cats", "ca", "n't", "wait", "."], ["New York"], ["Yes"]]
    assert read.tags == [["DET", "NOUN", "AUX", "PART", "VERB", "PUNCT"], ["PROPN"], ["INTJ"]]
    assert (read.scheme, list(read.documents)) == ("plain", [0, 2])
    assert task.metrics == ("accuracy", "macro_f1")
    rows = list(read.rows(read.tags))
    for row, line in zip(rows, CONLLU.split("\n"), strict=False):
        tag = line.split("\t")[3] if line[:1].isdigit() and "." not in line.split("\t")[0] else "_"
        assert row == (line if line[:1] in ("", "#") else f"{line}\t{tag}")


def test_a_treebank_whose_words_are_blanked_is_refused(tmp_path: Path) -> None:
    """As UD_Arabic-NYUAD, whose text has another licence."""
    lines = ["\t".join([str(i), "_", "_", tag, *"______"]) for i, tag in ((1, "NOUN"), (2, "VERB"))]
    (tmp_path / "en_ewt-ud-dev.conllu").write_text("\n".join([*lines, "", *lines]) + "\n")
    with pytest.raises(DataError, match=r"dev\.conllu has no words"):
        load_task("ud-pos").read(str(tmp_path), "dev", None)


def test_the_other_columns_of_conll2003_are_tasks(shared_data: Path) -> None:
    for name, scheme, kinds in (("conll2003-pos", "plain", 45), ("conll2003-chunk", "IOB1", 10)):
        task = load_task(name)
        read = task.read(str(shared_data / "tasks"), "dev", None)
        statistics = task.dataset_statistics(read)
        assert (statistics["words"], statistics["scheme"]) == (51362, scheme)
        assert len(read.types()) == kinds
    assert read.types()["NP"] > 10_000


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("BILOU", ["B-X", "I-X", "L-X", "O", "U-Y", "U-Y"]),
        ("BIOES", ["B-X", "I-X", "E-X", "O", "S-Y", "S-Y"]),
        ("IOB1", ["I-X", "I-X", "I-X", "O", "I-Y", "B-Y"]),
    ],
)
def test_every_scheme_is_read_and_written_back(
    tmp_path: Path, scheme: str, tags: list[str]
) -> None:
    path = tmp_path / "dev.txt"
    path.write_text("".join(f"w {tag}\n" for tag in tags), encoding="utf-8")
    read = load_task("tagging").read(str(path), "dev", None)
    assert (read.scheme, read.misplaced) == (scheme, 0)
    assert read.tags == [["B-X", "I-X", "I-X", "O", "B-Y", "B-Y"]]
    assert list(read.rows(read.tags)) == [f"w {tag} {tag}" for tag in tags]


def test_biobert_writes_tags_without_a_type(tmp_path: Path) -> None:
    (tmp_path / "devel.tsv").write_text("Wilms\tB\ntumour\tI\nis\tO\n\ngout\tB\n", encoding="utf-8")
    read = load_task("bc5cdr-disease").read(str(tmp_path), "dev", None)
    assert read.types() == {"_": 2}
    assert list(read.rows(read.tags)) == [
        "Wilms\tB\tB",
        "tumour\tI\tI",
        "is\tO\tO",
        "",
        "gout\tB\tB",
    ]


def test_documents_are_marked_as_each_corpus_does(tmp_path: Path) -> None:
    for task, name, text in (
        ("bc5cdr", "dev.txt", "-DOCSTART- (1)\n\na\tX\tO\tO\n\nb\tX\tO\tO\n\n-DOCSTART- (2)\n\nc\tX\tO\tI-E\n"),
        ("jnlpba", "train.txt", "-DOCSTART-\tO\n\na\tNN\tO\tB-DNA\n\nb\tNN\tO\tO\n\n-DOCSTART-\tO\n\nc\tNN\tO\tO\n"),
        ("jnlpba", "Genia4ERtask1.iob2", "###MEDLINE:95369245\n\na\tB-DNA\n\nb\tO\n\n###MEDLINE:1\n\nc\tO\n"),
        ("ebm-pico", "dev.txt", "-DOCSTART- (7)\n\na NN O I-INT\n\nb NN O O\n\n\n-DOCSTART- (8)\n\nc NN O I-PAR\n"),
    ):  # fmt: skip
        directory = tmp_path / f"{task}-{name}"
        directory.mkdir()
        (directory / name).write_text(text, encoding="utf-8")
        split = "dev" if name.startswith("dev") else "train"
        read = load_task(task).read(str(directory), split, None)
        assert (read.words, list(read.documents)) == ([["a"], ["b"], ["c"]], [0, 2])
        assert read.separator == (" " if task == "ebm-pico" else "\t")
    assert load_task("ebm-pico").metrics == ("macro_f1", "accuracy")
    assert read.labels() == ["I-INT", "I-PAR", "O"]


def test_unknown_labels_are_errors_of_the_model_and_other_tag_sets_are_refused(
    tmp_path: Path, pieces: Tokenizer
) -> None:
    (tmp_path / "dev.txt").write_text("a DET\nb NOUN\n", encoding="utf-8")
    task = load_task("tagging", {"scheme": "plain"})
    read = task.read(str(tmp_path), "dev", None)
    with pytest.raises(DataError, match=r"line 1: the label 'DET' is unknown to the model"):
        task.align_labels(read, {"labels": ["DT"], "scheme": "plain"})
    known = task.align_labels(read, {"labels": ["DET"], "scheme": "plain"})
    batch = task.encode(known, pieces, 8).batch([0])  # a label of a small treebank's dev split
    assert batch["labels"][batch[FIRST]].tolist() == [0, IGNORE_INDEX]
    predicted = Tags(tags=[["DET", "DET"]], scores=[np.ones(2, np.float32)])
    assert task.score(known, predicted)["accuracy"] == 0.5


def test_intervals_of_words_resample_sentences() -> None:
    sentences = np.repeat(np.arange(20), 50)
    labels = np.repeat(np.arange(2), 500)
    predictions = np.where(sentences % 4 == 0, 1 - labels, labels)
    grouped, alone = (
        classification_intervals(("accuracy",), labels, predictions, 1, 200, groups)["accuracy"]
        for groups in (sentences, None)
    )
    assert grouped[0] < alone[0] < 0.75 < alone[1] < grouped[1]


def test_parts_of_speech_are_trained_scored_and_predicted(pretrained: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    for split, count in (("train", 80), ("dev", 20)):
        lines = []
        for _ in range(count):
            words = draw.choice([*GOOD, *BAD, "the"], size=draw.integers(1, 9))
            lines += [
                f"{w} {'DET' if w == 'the' else 'I-' if w in GOOD else 'NOUN'}" for w in words
            ]
            lines.append("")
        (tmp_path / f"{split}.txt").write_text("\n".join(lines), encoding="utf-8")
    chosen = {"task": "tagging", "options": {"scheme": "plain"}, "epochs": 6, "baselines": False}
    made = finetune(settings(tmp_path, **chosen), pretrained, tmp_path / "out").manifest.summary
    assert list(made["metrics"]) == ["accuracy", "macro_f1"]
    assert made["metrics"]["macro_f1"] > 0.9
    assert made["labels"]["dev"].keys() == {"DET", "I-", "NOUN"}
    done = evaluate(tmp_path / "out", tmp_path / "eval", data=str(tmp_path)).as_json()
    assert done["metrics"] == pytest.approx(made["metrics"])
    content = json.loads((tmp_path / "eval" / "metrics.json").read_text())
    low, high = content["interval"]["macro_f1"]
    assert low <= made["metrics"]["macro_f1"] <= high
    found = TokenClassificationPipeline(str(tmp_path / "out")).tag("the bad")
    assert [(word["text"], word["type"]) for word in found] == [("the", "DET"), ("bad", "NOUN")]


# The document around a sentence.


@pytest.mark.parametrize("room", [4, 9, 30])
def test_a_window_is_filled_up_evenly(room: int) -> None:
    sizes = np.random.default_rng(room).integers(1, 4, size=40)
    for begin in range(38):
        end = begin + (1 if room < 6 else 2)
        low, high = widen(sizes, begin, end, room)
        assert 0 <= low <= begin < end <= high <= 40
        assert sizes[low:high].sum() <= room
        if low and high < 40:  # neither side has run out: no word more fits on both
            assert sizes[low:high].sum() > room - 2 * 3
            assert abs(sizes[low:begin].sum() - sizes[end:high].sum()) <= 2 * 3
    assert widen(np.ones(5, np.int64), 0, 2, 9) == (0, 5)


def test_neighbours_are_read_and_only_the_sentence_is_counted(pieces: Tokenizer) -> None:
    sentences = [["good", "films"], ["the"], ["bad", "plot"], ["cold"]]
    labels = [np.full(len(words), number) for number, words in enumerate(sentences)]
    samples = encode_words(sentences, pieces, 7, labels, documents=[0, 3])
    texts = [[pieces.backend.id_to_token(i) for i in own] for own in samples.sequences]
    assert texts == [
        ["[CLS]", "good", "film", "##s", "the", "bad", "[SEP]"],
        ["[CLS]", "film", "##s", "the", "bad", "plot", "[SEP]"],
        ["[CLS]", "film", "##s", "the", "bad", "plot", "[SEP]"],
        ["[CLS]", "cold", "[SEP]"],  # another document
    ]
    batch = samples.batch([0, 1, 2, 3])
    assert batch["labels"][batch[FIRST]].tolist() == [0, 0, 1, 2, 2, 3]
    assert [batch["input_ids"][row][batch[FIRST][row]].tolist() for row in (1, 2)] == [
        [pieces.backend.token_to_id(word) for word in own] for own in sentences[1:3]
    ]


def test_the_document_of_real_sentences_surrounds_them(
    shared_data: Path, pieces: Tokenizer
) -> None:
    documents, alone = (
        load_task("conll2003", {"context": name}) for name in ("document", "sentence")
    )
    read = documents.read(str(shared_data / "tasks"), "dev", None)
    assert len(read.documents) == 216
    known = documents.align_labels(read, documents.metadata(read))
    wide, narrow = (task.encode(known, pieces, 128) for task in (documents, alone))
    plain = encode_words(known.words, pieces, 128)
    assert all(map(np.array_equal, narrow.sequences, plain.sequences))
    assert [window.own for window in wide.windows] == [window.own for window in narrow.windows]
    assert wide.lengths.mean() > 3 * narrow.lengths.mean()
    for window, first, own, sequence in zip(
        wide.windows, wide.first, narrow.first, zip(wide.sequences, narrow.sequences, strict=True),
        strict=True,
    ):  # fmt: skip
        assert len(first) == len(own) == window.own[1] - window.own[0]
        assert sequence[0][first].tolist() == sequence[1][own].tolist()


def test_files_without_documents_have_none_to_show(tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("a O\n\nb O\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"marks no documents .* options\.context=sentence"):
        load_task("tagging", {"context": "document"}).read(str(tmp_path), "dev", None)


def test_a_label_that_only_the_neighbour_tells_is_learned_from_the_document(
    pretrained: str, tmp_path: Path
) -> None:
    draw = np.random.default_rng(2)
    for split, count in (("train", 150), ("dev", 40)):
        text = []
        for good in np.arange(count) % 2 == 0:
            mood = draw.choice(GOOD if good else BAD)
            text += ["-DOCSTART- O", "", f"{mood} O", "", f"film B-{'A' if good else 'B'}", ""]
        (tmp_path / f"{split}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    scores, pace = {}, {"epochs": 8, "learning_rate": 3e-3, "baselines": False}
    for context in ("sentence", "document"):
        chosen = {"task": "tagging", "options": {"context": context}, **pace}
        finetune(settings(tmp_path, **chosen), pretrained, tmp_path / context)
        done = evaluate(tmp_path / context, tmp_path / f"{context}-eval", data=str(tmp_path))
        scores[context] = done.as_json()["metrics"]["f1"]
    assert scores["document"] > 0.9 > 0.6 > scores["sentence"]
    texts = TaggedWords(words=[["film"]])
    assert not texts.documents  # texts of users are documents of their own
    assert tagging_scores([["O"]], [["O"]])["accuracy"] == 1.0
