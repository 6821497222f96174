"""`cloze plan --model`: what the command takes, prints and refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flows.cli import main

AS_TYPED = ["plan", "--model", "roberta-large", "--gpus", "64", "--gpu", "h100", "--tokens", "300e9"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_as_typed_it_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, *AS_TYPED, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    assert out.count("\n") == 1
    assert found["tokens"] == 300e9
    assert {row["zero"] for row in found["memory"]} == {0, 1, 2, 3}
    assert found["chosen"]["command"].startswith("cloze pretrain ")
    assert {"checkpoint", "dataset"} <= found["bytes"].keys()


@pytest.mark.parametrize("columns", [80, 100])
def test_a_person_s_plan_fits_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = told(capsys, *AS_TYPED, "--interconnect", "1e9")
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    words = " ".join(out.split())
    for word in (
        "355M parameters",
        "64 h100 in 8 machines",
        "most that fits",
        "GPU-h",
        "It would take ZeRO",
        "cloze pretrain",
        "careful:",
    ):
        assert word in words, word
    assert "…" not in out, "nothing is cut off"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "roberta-large", "--tokens", "many"], "tokens (many) is no number above 0; write it as 300e9"),
        (["--model", "roberta-large", "--tokens", "nan"], "tokens (nan) is no number above 0"),
        (["--model", "roberta-large", "--tokens", "1e9", "--gpus", "0"], "gpus (0) must be at least 1"),
        (["--model", "roberta-larg", "--tokens", "1e9"], "did you mean 'roberta-large'"),
        (["--model", "roberta-large"], "tokens is missing; say how many"),
        ([], "nothing to plan; name a run's CONFIG, or a --model"),
        (["demo", "--gpus", "4"], "--gpus is for plans of a --model"),
        (["--model", "bert-base", "--tokens", "1e9", "--only", "pretrain"], "only is for plans of a CONFIG"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    code, out, err = told(capsys, "plan", *arguments)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""
