"""`cloze vocab` as it is typed: train, import, compare."""

from __future__ import annotations

import json

import pytest

from cloze.core.stages.execute import BuildResult
from cloze.pipeline.tokenizer import load
from tests.pipeline.vocab.vocabularies import CONFIG, make, write_sample_corpus

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_sample_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def vocab(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return make(corpus, tmp_path_factory.mktemp("vocab"), **CONFIG)


def command(capsys, *arguments: str, name: str = "vocab") -> tuple[int, dict, str]:
    """Run `cloze vocab`; its exit code, its JSON, and its output."""
    from cloze.flows.cli import main

    code = main([name, *arguments])
    out, err = capsys.readouterr()
    return (
        code,
        json.loads(out.splitlines()[-1]) if code == 0 and "--json" in arguments else {},
        out + err,
    )


def test_as_typed(corpus, vocab, tmp_path, capsys):
    code, made, _ = command(
        capsys,
        "--corpus",
        corpus,
        "--kind",
        "bpe",
        "--size",
        "50265",
        "--out",
        str(tmp_path / "bpe"),
        "--json",
    )
    assert code == 0
    assert made["kind"] == "bpe"
    assert made["size"] < 50265
    assert load(made["artifact"]).special.mask == made["size"] - 1
    assert not made["cached"]
    code, again, _ = command(
        capsys,
        "--corpus",
        corpus,
        "--kind",
        "bpe",
        "--out",
        str(tmp_path / "bpe"),
        "--force",
        "--json",
    )
    assert code == 0
    tokenizers = (again["artifact"], vocab.artifact)
    code, compared, _ = command(
        capsys, *tokenizers, "--corpus", corpus, "--json", name="compare-vocab"
    )
    assert code == 0
    assert set(compared) == {"report"}
    assert [row["tokenizer"] for row in compared["report"]] == list(tokenizers)
    assert compared["report"][0]["fertility"] == again["fertility"]
    assert compared["report"][0]["words"] == compared["report"][1]["words"]  # the same text for all
    code, _, said = command(capsys, *tokenizers, "--corpus", corpus, name="compare-vocab")
    assert "fertility (pieces a word)" in said
    code, imported, _ = command(
        capsys, "--import", vocab.artifact, "--out", str(tmp_path / "imported"), "--json"
    )
    assert (code, imported["kind"], imported["size"]) == (0, "wordpiece", 300)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--corpus", "C"], "Missing option '--out'"),
        (["--import", "V", "--kind", "bpe", "--out", "O"], "--kind (bpe) is for training"),
        (["--kind", "bpe", "--out", "O"], "give a corpus"),
    ],
)
def test_commands_that_do_not_fit(corpus, vocab, tmp_path, capsys, arguments, says):
    places = {"V": vocab.artifact, "C": corpus, "O": str(tmp_path / "o")}
    code, _, said = command(capsys, *(places.get(argument, argument) for argument in arguments))
    assert code == 2
    assert says in said
