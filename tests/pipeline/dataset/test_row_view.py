"""A row as a person reads it: what `cloze inspect` shows is what stands in the shard."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cloze.core import random_keys
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import BuildResult
from cloze.flows.cli import main
from cloze.flows.views.inspection import STYLES, render
from cloze.pipeline.dataset.row_view import RowView, read_row
from cloze.pipeline.vocab.config import VocabConfig
from cloze.pipeline.vocab.trainers import train_bpe
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import made_corpus, make, rows, write_vocab


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory: Path = tmp_path_factory.mktemp("inputs")
    return made_corpus(directory / "corpus"), write_vocab(directory)


@pytest.fixture(scope="module")
def made(inputs: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return make(*inputs, tmp_path_factory.mktemp("made"))


def shown(view: RowView, width: int = 100) -> Console:
    console = Console(width=width, record=True, force_terminal=True, file=io.StringIO())
    console.print(render({**view.as_json(), "texts": view.texts}))
    return console


@pytest.mark.parametrize("row", [0, 12, 57])
@pytest.mark.parametrize("copy", [0, 2])
def test_a_view_is_its_row(made: BuildResult, row: int, copy: int) -> None:
    view, plain = read_row(made.artifact, row, copy=copy), rows(made)[row]
    vocabulary = (Path(made.artifact) / "tokenizer" / "vocab.txt").read_text().splitlines()
    assert list(view.pieces) == [vocabulary[token] for token in plain["input_ids"]]
    mask = plain["masks"][copy]
    assert [found.position for found in view.predictions] == mask["positions"]
    assert [found.shown for found in view.predictions] == [
        vocabulary[token] for token in mask["input_ids"]
    ]
    assert [found.original for found in view.predictions] == [
        view.pieces[at] for at in mask["positions"]
    ]
    for found in view.predictions:
        kinds = {"[MASK]": "masked", found.original: "kept"}
        assert found.kind == kinds.get(found.shown, "random")
    assert view.pair_label == {0: "next", 1: "random", None: None}[plain["pair_label"]]
    assert (
        view.lengths["row"]
        == view.lengths["A"] + view.lengths["B"] + len(view.special)
        == len(plain["input_ids"])
    )
    assert (view.document, view.offset) == (plain["source"]["document"], plain["source"]["offset"])


def test_the_text_is_the_documents_text(made: BuildResult) -> None:
    texts = {
        random_keys.document_key(name): " ".join(text).lower() for name, text in made_documents()
    }
    found = 0
    for number in range(40):
        view = read_row(made.artifact, number)
        first = (
            "".join(view.texts[1 : view.segment_start - 1]).replace(" .", ".").replace(" ,", ",")
        )
        found += view.document in texts and " ".join(first.split()) in texts[view.document].replace(
            " .", "."
        )
    assert found > 20


def test_each_kind_of_prediction_is_seen(made: BuildResult) -> None:
    view = next(
        view
        for view in (read_row(made.artifact, n) for n in range(60))
        if len({p.kind for p in view.predictions}) == 3
    )
    console = shown(view)
    text = console.export_text(clear=False)
    styled = console.export_text(styles=True)
    for name in (
        "segment A",
        "segment B",
        "NSP",
        f"{view.document:#018x}",
        "masked",
        "random",
        "kept",
    ):
        assert name in text
    drawn = next(found for found in view.predictions if found.kind == "random")
    assert f"→{drawn.shown}" in text.replace("\n", "")
    assert all(style.split()[-1] in ("yellow", "red", "green") for style in STYLES.values())
    assert "\x1b[" in styled


def test_packed_rows_show_their_sequences(inputs: tuple[str, str], tmp_path: Path) -> None:
    made = make(*inputs, tmp_path, recipe="packed", length=64)
    number, plain = next((n, row) for n, row in enumerate(rows(made)) if len(row["boundaries"]) > 1)
    view = read_row(made.artifact, number)
    assert list(view.boundaries or ()) == plain["boundaries"]
    assert "sequence 2" in shown(view).export_text()


def test_labels_of_sentence_order(inputs: tuple[str, str], tmp_path: Path) -> None:
    made = make(*inputs, tmp_path, recipe="albert")
    labels = {read_row(made.artifact, number).pair_label for number in range(40)}
    assert labels - {None} == {"in order", "swapped"}


def test_byte_level_pieces_are_text(tmp_path: Path) -> None:
    text = "今天 ' ok café 😀."
    backend = train_bpe(
        lambda: iter(["an ok cat"] * 9),
        VocabConfig(),
        size=270,
        lowercase=False,
        strip_accents=False,
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    corpus = write_corpus(tmp_path / "corpus", [("a", [text])])
    made = make(corpus, str(tmp_path / "tokenizer.json"), tmp_path / "out", recipe="roberta")
    view = read_row(made.artifact, 0)
    assert view.text == f"<s> {text} </s>"
    assert view.texts[1:7] == ("", "", "今", "", "", "天")
    assert "".join(view.texts[1:-1]) == text


@pytest.mark.usefixtures("warm")
def test_the_command(made: BuildResult, capfd) -> None:
    assert main(["inspect", made.artifact, "--row", "12", "--mask-copy", "1", "--json"]) == 0
    output = json.loads(capfd.readouterr().out)
    assert output["pieces"] == list(read_row(made.artifact, 12).pieces)
    assert output["document"] == str(read_row(made.artifact, 12).document)
    assert output["predictions"][0].keys() == {"position", "original", "shown", "kind"}
    shard = str(sorted(Path(made.artifact).glob("train-*"))[1])
    assert main(["inspect", shard, "--row", "0"]) == 0
    assert "segment A" in capfd.readouterr().out
    assert main(["inspect", made.artifact, "--split", "heldout"]) == 0
    assert "heldout" in capfd.readouterr().out


def test_a_shard_alone_is_shown_by_numbers(made: BuildResult, tmp_path: Path) -> None:
    copy = tmp_path / "train-00000-of-00004.arrow"
    copy.write_bytes((Path(made.artifact) / copy.name).read_bytes())
    assert read_row(str(copy), 0).pieces[0] == "<2>"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            {"row": 10**6},
            UsageError,
            r"row \(1000000\) is not one of the [\d,]+ rows of the split train; use 0 to",
        ),
        ({"row": 0, "copy": 3}, UsageError, r"copy \(3\) is not one of the 3 mask copies"),
        ({"row": 0, "split": "helddout"}, UsageError, "did you mean 'heldout'"),
    ],
)
def test_what_is_not_there(
    made: BuildResult, arguments: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        read_row(made.artifact, **arguments)  # type: ignore[arg-type]


def test_what_is_no_dataset(inputs: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_row(str(tmp_path / "nothing"), 0)
    with pytest.raises(DataError, match="has no shards"):
        read_row(inputs[0], 0)
    with pytest.raises(DataError, match="is no Cloze dataset shard"):
        read_row(str(next(Path(inputs[0]).glob("*.arrow"))), 0)
    (tmp_path / "train-0.arrow").write_bytes(b"ARROW1\0\0")
    with pytest.raises(DataError, match=r"train-0\.arrow is damaged"):
        read_row(str(tmp_path), 0)


def test_looking_needs_neither_torch_nor_beam(made: BuildResult) -> None:
    code = (
        "import sys; from cloze.flows.cli import main;"
        f"main(['inspect', {made.artifact!r}]); print({{'torch', 'apache_beam'}} & "
        f"set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.splitlines()[-1] == "set()"
