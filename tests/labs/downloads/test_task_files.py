"""Task data of a server with files of the true layouts: fetched, and read by its tasks."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.labs.downloads import fetch
from cloze.model.tasks.table import load_task
from tests.flows.test_cli import cloze
from tests.labs.downloads.test_downloads import archive, files, invoke, mirror, publish

__all__ = ["files"]  # a fixture
SPLITS = ("train", "dev")


def tar(**members: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as content:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            content.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    "0,anetv_1,3416,He waits. He,He waits.,He,gold,sits.,runs.,eats.,sings.,1\n"
)
PASSAGE = {
    "answers": ["B"],
    "options": [["one", "two", "three", "four"]],
    "questions": ["How many?"],
    "article": "There are two.",
}
RACE = {
    f"RACE/{split}/{part}/1.txt": json.dumps({**PASSAGE, "id": f"{part}1.txt"})
    for split in ("train", "dev", "test")
    for part in ("middle", "high")
}
ANSWER = {"text": "two", "char_spans": [[10, 12]], "token_spans": [[2, 2]]}
QUESTION = {"qid": "1", "question": "How many?", "detected_answers": [ANSWER], "answers": ["two"]}
MRQA = gzip.compress(
    lines(
        {"header": {"dataset": "x", "split": "train"}},
        {"id": "", "context": "There are two.", "context_tokens": [], "qas": [QUESTION]},
    ).encode()
)
GLUE_ROWS = {
    "BoolQ": {"question": "is it", "passage": "It is.", "idx": 0, "label": True},
    "CB": {"premise": "It is.", "hypothesis": "it is", "label": "entailment", "idx": 0},
    "COPA": {
        "premise": "It fell.", "choice1": "It broke.", "choice2": "It sang.", "question": "effect",
        "label": 0, "idx": 0,
    },
    "MultiRC": {
        "idx": 0,
        "version": 1.1,
        "passage": {
            "text": "There are two.",
            "questions": [
                {"question": "How many?", "answers": [{"text": "two", "idx": 0, "label": 1}],
                 "idx": 0}
            ],
        },
    },
    "WiC": {
        "word": "run", "sentence1": "A run.", "sentence2": "They run.", "idx": 0, "label": False,
        "start1": 2, "start2": 5, "end1": 5, "end2": 8, "version": 1.1,
    },
}  # fmt: skip
WSC = [
    {
        "text": "Ann saw Eve and she waved.", "idx": number, "label": right,
        "target": {"span2_index": 4, "span1_index": at, "span1_text": who, "span2_text": "she"},
    }
    for number, (at, who, right) in enumerate([(0, "Ann", True), (2, "Eve", False)])
]  # fmt: skip
SUPERGLUE = {
    name: archive(
        **{f"{name}/{file}.jsonl": lines(*rows) for file in ("train", "val", "test")},
        **{f"__MACOSX/{name}/._train.jsonl": "x"},
    )
    for name, rows in {**{name: [row] for name, row in GLUE_ROWS.items()}, "WSC": WSC}.items()
}
ARCT = (
    "#id\twarrant0\twarrant1\tcorrectLabelW0orW1\treason\tclaim\tdebateTitle\tdebateInfo\n"
    "1_2_A\tit helps\tit harms\t1\tIt gives prizes.\tIt is good\tPrizes\tIs it?\n"
)
CODAH = "".join(f"o\tNumber {n} is\tone.\ttwo.\tthree.\tfour.\t{n % 4}\n" for n in range(10))
WORDS = "Ann\tB-person\nis\tO\nhere\tO\n\n"
WORD = "\t".join(["1", "Ann", "Ann", "PROPN", "NNP", "_", "0", "root", "_", "_"])
SENTENCE = f"# text = Ann\n{WORD}\n\n"
TREEBANK = tar(
    **{
        "UD_X-Y-r2.16/LICENSE.txt": "CC BY-SA 4.0\n",
        "UD_X-Y-r2.16/not-to-release/x.conllu": "no\n",
        "UD_X-Y-r2.16/x_y-ud-dev.conllu": SENTENCE,
        "UD_X-Y-r2.16/x_y-ud-test.conllu": SENTENCE,
        "UD_X-Y-r2.16/x_y-ud-train-a.conllu": SENTENCE,
        "UD_X-Y-r2.16/x_y-ud-train-b.conllu": SENTENCE.replace("Ann", "Eve"),
    }
)
CONTENTS: dict[str, dict[str, bytes]] = {
    "swag": {f"{name}.csv": SWAG.encode() for name in ("train", "val", "test")},
    "race": {"RACE.tar.gz": tar(**RACE)},
    "mrqa": {remote.name: MRQA for remote in fetch.PUBLISHED["mrqa"]["files"].values()},
    "superglue": {f"{name}.zip": content for name, content in SUPERGLUE.items()},
    "arct": {f"{split}.tsv": ARCT.encode() for split in ("train", "dev", "test")},
    "scicite": {
        f"{split}.txt": lines({"text": "As in [1].", "label": "method", "metadata": {}}).encode()
        for split in ("train", "dev", "test")
    },
    "codah": {"full_data.tsv": CODAH.encode()},
    "wnut17": {
        name: WORDS.encode()
        for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
    },
}


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_tasks_read_what_is_fetched(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    publish(files, monkeypatch, name, **CONTENTS[name])
    answer = invoke(name, "--mirror", mirror(files), "--out", tmp_path / name)
    assert answer["tasks"] == fetch.PUBLISHED[name]["tasks"].split()
    for task in answer["tasks"]:
        for split in SPLITS:
            assert len(load_task(task).read(str(tmp_path / name), split, None)), task
    files.asked.clear()
    invoke(name, "--mirror", mirror(files), "--out", tmp_path / name)
    assert files.asked == []


@pytest.mark.parametrize("name", ["race", "superglue"])
def test_an_interrupted_archive_continues(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    publish(files, monkeypatch, name, **CONTENTS[name])
    files.cut = 100
    with pytest.raises(ClozeError, match="broke off at 100 of"):
        invoke(name, "--mirror", mirror(files), "--out", tmp_path)
    files.cut = None
    assert invoke(name, "--mirror", mirror(files), "--out", tmp_path)["tasks"]


def test_an_archive_without_its_members_is_told(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = {name: text for name, text in RACE.items() if "/dev/" not in name}
    publish(files, monkeypatch, "race", **{"RACE.tar.gz": tar(**part)})
    with pytest.raises(DataError, match="RACE has no dev split, which task race reads"):
        invoke("race", "--mirror", mirror(files), "--out", tmp_path)
    publish(files, monkeypatch, "race", **CONTENTS["race"])  # fetched again, as it is not whole
    assert invoke("race", "--mirror", mirror(files), "--out", tmp_path)["tasks"] == ["race"]
    publish(files, monkeypatch, "snli", **{"snli_1.0.zip": archive(**{"x/README": "y"})})
    with pytest.raises(DataError, match="none of the files that it should have"):
        invoke("snli", "--mirror", mirror(files), "--out", tmp_path / "snli")


TREEBANK_PATH = "/UniversalDependencies/UD_X-Y/archive/r2.16/UD_X-Y-r2.16.tar.gz"


def test_a_treebank_is_fetched_by_its_name_and_pinned(files: Any, tmp_path: Path) -> None:
    files.files[TREEBANK_PATH] = TREEBANK
    where = ("--mirror", mirror(files), "--out", tmp_path)
    done = cloze("fetch", "ud/UD_X-Y", *where)
    assert (done.returncode, f"for --task ud-pos --data {tmp_path / 'UD_X-Y'}" in done.stdout) == (
        0, True,
    )  # fmt: skip
    assert "no published checksum: got sha256" in done.stderr
    train = load_task("ud-pos").read(str(tmp_path / "UD_X-Y"), "train", None)
    assert [list(words) for words in train.words] == [["Ann"], ["Eve"]]
    unpacked = {path.name for path in (tmp_path / "UD_X-Y").iterdir()}
    assert unpacked == {"LICENSE.txt", "train.conllu", "dev.conllu", "test.conllu"}
    (tmp_path / "UD_X-Y/dev.conllu").unlink()
    files.files[TREEBANK_PATH] = tar(**{"UD_X-Y-r2.16/x_y-ud-test.conllu": SENTENCE})
    done = cloze("fetch", "ud/UD_X-Y", *where)
    assert (done.returncode, "its first download had" in done.stderr) == (3, True)
    (tmp_path / "fetched.json").unlink()
    (tmp_path / "UD_X-Y/train.conllu").unlink()
    done = cloze("fetch", "ud/UD_X-Y", *where)  # a treebank for tests alone
    assert (done.returncode, "has no train split" in done.stderr) == (0, True)


def test_a_part_of_a_collection(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(files, monkeypatch, "mrqa", **CONTENTS["mrqa"])
    answer = invoke("mrqa/TriviaQA-web", "--mirror", mirror(files), "--out", tmp_path)
    assert answer["tasks"] == ["triviaqa"]
    assert sorted(answer["files"]) == [
        str(tmp_path / split / "TriviaQA-web.jsonl.gz") for split in sorted(SPLITS)
    ]
    for wrong in ("mrqa/TriviaQA", "c4/en", "ud/../x", "swagg"):
        with pytest.raises(UsageError):
            invoke(wrong, "--mirror", mirror(files), "--out", tmp_path)


def test_a_file_that_changed_on_this_disk_is_told(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(files, monkeypatch, "swag", **CONTENTS["swag"])
    invoke("swag", "--mirror", mirror(files), "--out", tmp_path)
    (tmp_path / "val.csv").write_text("cut")
    with pytest.raises(DataError, match=r"val\.csv has changed"):
        invoke("swag", "--mirror", mirror(files), "--out", tmp_path)
    (tmp_path / fetch.FETCHED).write_text("{")
    with pytest.raises(DataError, match="is no record of downloads"):
        invoke("swag", "--mirror", mirror(files), "--out", tmp_path)


def test_probes_of_lama(files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = {"obj_label": "Rome", "sub_label": "Italy", "masked_sentences": ["It is [MASK]."]}
    contents = {
        "negated_data.tar.gz": tar(**{"./Squad/test.jsonl": lines(probe)}),
        "relations.jsonl": lines({"relation": "P36", "template": "[X] has [Y] ."}).encode(),
    }
    publish(files, monkeypatch, "lama", **contents)
    invoke("lama", "--mirror", mirror(files), "--out", tmp_path)
    assert json.loads((tmp_path / "Squad/test.jsonl").read_text()) == probe


def test_every_row_has_a_licence_and_tasks_that_exist() -> None:
    for name, row in fetch.PUBLISHED.items():
        assert row["licence"], name
        assert all(load_task(task) for task in row.get("tasks", "").split()), name
        for remote in row["files"].values():
            assert remote.sha256 is None or len(remote.sha256) == 64, remote
