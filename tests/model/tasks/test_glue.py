"""GLUE's tasks and SciCite in their official files: every column where the archive has it, and what
a submission needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core.errors import DataError
from cloze.core.storage import read_tsv
from cloze.model.tasks.table import TASKS, load_task

# The first lines of the archive's files: header (of train and dev), a line; header of test, a line.
FILES: dict[str, tuple[str, str, str, str]] = {
    "sst2": ("sentence\tlabel", "fine film \t1", "index\tsentence", "0\tfine film"),
    "cola": ("", "gj04\t0\t*\tThem sailed.", "index\tsentence", "0\tThem sailed."),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '1\t7\t8\tHe said " no .\tHe denied .',
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "0\t7\t8\tHe said .\tHe denied .",
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "133273\t213221\t213222\tWhy?\tWhy not?\t0",
        "id\tquestion1\tquestion2",
        "0\tWhy?\t",
    ),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_"
        "parse\tsentence2_parse"
        "\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t31193\t31193n\tgovernment\t( x )\t( y )\t(ROOT x)\t(ROOT y)\tIt rains.\tIt is "
        "wet.\tneutral\tentailment",
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_"
        "parse\tsentence2_parse"
        "\tsentence1\tsentence2",
        "0\t31493\t31493\ttravel\t( x )\t( y )\t(ROOT x)\t(ROOT y)\tIt rains.\tIt is wet.",
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel",
        "0\tWhen?\tIn 1990.\tentailment",
        "index\tquestion\tsentence",
        "0\tWhen?\tIn 1990.",
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel",
        "0\tIt rains.\tIt is wet.\tnot_entailment",
        "index\tsentence1\tsentence2",
        "0\tIt rains.\tIt is wet.",
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel",
        "0\tIt rains.\tIt is wet.\t1",
        "index\tsentence1\tsentence2",
        "0\tIt rains.\tIt is wet.",
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t4.750",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        "0\tmain-captions\tMSRvid\t2016test\t0024\tnone\tnone\tA plane.\tAn air plane.",
    ),
}
SINGLE = ("sst2", "cola")


def write(directory: Path, task: str) -> Path:
    """The task's directory as the archive has it."""
    folder = directory / str(TASKS[task].options["folder"])
    folder.mkdir(parents=True)
    header, line, test_header, test_line = FILES[task]
    files = TASKS[task].options.get("files", {})
    for split in ("train", "dev"):
        name = files.get(split, (f"{split}.tsv",))[0]
        (folder / name).write_text(
            "\n".join([*([header] if header else []), line, ""]), encoding="utf-8"
        )
    test = files.get("test", ("test.tsv",))[0]
    (folder / test).write_text("\n".join([test_header, test_line, ""]), encoding="utf-8")
    return folder


@pytest.mark.parametrize("task", FILES)
def test_a_task_reads_its_archive(tmp_path: Path, task: str) -> None:
    folder = write(tmp_path, task)
    for path in (tmp_path, folder):
        examples = load_task(task).read(str(path), "dev", None)
        assert examples.labelled
        assert len(examples) == 1
        assert (examples.text_pairs is None) == (task in SINGLE)
    line = FILES[task][1]
    assert examples.texts[0] in line.split("\t")
    assert (examples.text_pairs or line.split("\t"))[0] in line.split("\t")
    answer = (
        f"{examples.scores[0]:.3f}" if task == "stsb" else examples.label_names[examples.labels[0]]
    )
    assert answer in line.split("\t")
    assert answer == {
        "cola": "0",
        "mrpc": "1",
        "qqp": "0",
        "wnli": "1",
        "sst2": "1",
        "stsb": "4.750",
    }.get(task, answer)


@pytest.mark.parametrize("task", FILES)
def test_a_test_file_is_predicted_with_its_index_and_not_scored(tmp_path: Path, task: str) -> None:
    folder = write(tmp_path, task)
    name = next(path for path in folder.iterdir() if path.name.startswith("test"))
    first, line, _ = name.read_text(encoding="utf-8").split("\n")
    name.write_text("\n".join([first, line, line.replace("0", "17", 1), ""]), encoding="utf-8")
    found = load_task(task)
    examples = found.read(str(tmp_path), "test", None)
    assert not examples.labelled
    predictions: Any = (
        np.array([0.5, 4.0])
        if task == "stsb"
        else np.tile(np.eye(len(examples.label_names))[1], (2, 1))
    )
    found.write_predictions(str(tmp_path), examples, predictions)
    rows = read_tsv(str(tmp_path / found.predictions))
    assert [row["index"] for row in rows] == ["0", "17"]
    assert [row["label"] for row in rows] == ["", ""]
    assert [row["prediction"] for row in rows] == (
        ["0.500000", "4.000000"] if task == "stsb" else [examples.label_names[1]] * 2
    )
    name.write_text("\n".join([first, line, line, ""]), encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3: duplicate id '0', see line 2"):
        found.read(str(tmp_path), "test", None)


def test_every_task_is_scored_as_glue_scores_it() -> None:
    official = {
        "cola": "matthews",
        "mrpc": "f1",
        "qqp": "f1",
        "stsb": "pearson",
        **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "wnli"), "accuracy"),
    }
    assert {task: load_task(task).metrics[0] for task in FILES} == official
    assert {load_task(task).metrics[1] for task in ("mrpc", "qqp")} == {"accuracy"}
    assert load_task("stsb").metrics == ("pearson", "spearman")


def test_mnli_has_two_of_each_and_the_diagnostic_set(tmp_path: Path) -> None:
    folder = write(tmp_path, "mnli")
    for split in ("dev", "test"):
        matched = folder / f"{split}_matched.tsv"
        (folder / f"{split}_mismatched.tsv").write_text(
            matched.read_text().replace("rains", "snows")
        )
    task = load_task("mnli")
    for split, word in (
        ("dev", "rains"),
        ("dev_matched", "rains"),
        ("dev_mismatched", "snows"),
        ("test_mismatched", "snows"),
    ):
        assert task.read(str(tmp_path), split, None).texts == [f"It {word}."]
    (folder / "diagnostic.tsv").write_text(
        "index\tsentence1\tsentence2\n0\tThe cat sat.\tIt sat.\n"
    )
    ax = task.read(str(folder), "ax", None)
    assert (ax.texts, ax.labels, ax.ids) == (["The cat sat."], None, ["0"])
    (folder / "diagnostic-full.tsv").write_text(
        "Lexical Semantics\tPredicate-Argument "
        "Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel\n"
        "\t\tNegation\t\tArtificial\tThe cat sat.\tIt sat.\tcontradiction\n"
    )
    assert task.read(str(folder), "ax_full", None).class_counts()["contradiction"] == 1


def test_examples_that_the_annotators_did_not_agree_on_are_counted(tmp_path: Path) -> None:
    folder = write(tmp_path, "mnli")
    with open(folder / "dev_matched.tsv", "a") as handle:
        handle.write(FILES["mnli"][1].replace("entailment", "-") + "\n")
    examples = load_task("mnli").read(str(folder), "dev", None)
    assert (len(examples), examples.dropped) == (1, {"without_a_label": 1})


def test_questions_that_are_broken_over_lines_are_counted_in_train_and_kept_out(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path, "qqp")
    with open(folder / "train.tsv", "a") as handle:
        handle.write("201\t1\t2\tWas there\n\tone?\t0\n202\t3\t4\tHow?\t\t0\n")
    examples = load_task("qqp").read(str(tmp_path), "train", None)
    assert examples.text_pairs == ["Why not?", ""]
    assert examples.dropped == {"irregular_line": 2}


def test_mrpc_reads_microsofts_own_test_file_with_its_labels(tmp_path: Path) -> None:
    folder = write(tmp_path, "mrpc")
    (folder / "test.tsv").unlink()
    (folder / "msr_paraphrase_test.txt").write_bytes(
        ("\r\n".join(FILES["mrpc"][:2]) + "\r\n").encode()
    )
    examples = load_task("mrpc").read(str(tmp_path), "test", None)
    assert (examples.labels, examples.text_pairs) == ([1], ["He denied ."])


@pytest.mark.parametrize(
    ("task", "line", "said"),
    [
        ("cola", "gj04\t2\t\tx", "line 1: label '2' is not one of 0, 1"),
        ("cola", "gj04\t1\t\tx\ngj04\t1\tx", "line 2: 3 columns, but the first line has 4"),
        (
            "rte",
            "0\tx\ty\tneutral",
            "line 2: label 'neutral' is not one of entailment, not_entailment",
        ),
        ("rte", "0\tx\t \tentailment", "line 2: the sentence2 is empty"),
        ("wnli", "0\tx\ty", "line 2: 3 columns, but the header has 4"),
        ("stsb", "0\t\t\t\t\t\t\tx\ty\tfive", "line 2: score 'five' is not a number"),
        ("stsb", "0\t\t\t\t\t\t\tx\ty\tnan", "line 2: score 'nan' is not a number"),
        ("stsb", "0\t\t\t\t\t\t\tx\ty\t5.01", "line 2: score 5.01 is not between 0 and 5"),
    ],
)
def test_a_fault_names_file_and_line(tmp_path: Path, task: str, line: str, said: str) -> None:
    folder = write(tmp_path, task)
    (folder / "dev.tsv").write_text(
        "\n".join([*([FILES[task][0]] if FILES[task][0] else []), line, ""])
    )
    with pytest.raises(DataError) as fault:
        load_task(task).read(str(tmp_path), "dev", None)
    assert said in str(fault.value)
    assert str(folder / "dev.tsv") in str(fault.value)


@pytest.mark.parametrize(
    ("task", "train", "dev", "ones"),
    [
        ("cola", 8551, 1043, 721),
        ("mrpc", 3667, 408, 279),
        ("rte", 2490, 277, 131),
        ("stsb", 5749, 1500, None),
    ],
)
def test_the_real_archive_is_read_to_its_last_line(
    shared_data: Path, task: str, train: int, dev: int, ones: int | None
) -> None:
    for split, count in (("train", train), ("dev", dev)):
        examples = load_task(task).read(str(shared_data / "tasks" / "glue"), split, None)
        assert (len(examples), dict(examples.dropped)) == (count, {})
    assert ones is None or list(examples.labels).count(1) == ones


def test_the_real_scicite_is_read(shared_data: Path) -> None:
    task = load_task("scicite")
    counts = {
        split: task.read(str(shared_data / "tasks" / "scicite"), split, None).class_counts()
        for split in ("dev", "test")
    }
    assert {split: sum(found.values()) for split, found in counts.items()} == {
        "dev": 916,
        "test": 1861,
    }
    assert counts["test"].keys() == {"background", "method", "result"}
    assert task.metrics[0] == "macro_f1"
