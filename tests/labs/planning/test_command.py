"""`cloze plan-training`: what the command takes, prints and refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloze.flows.cli import main

AS_TYPED = [
    "plan-training",
    "roberta-large",
    "--gpus",
    "64",
    "--gpu-type",
    "h100",
    "--tokens",
    "300e9",
]


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
    assert {way["zero"] for way in found["ways"]} == {0, 1, 2, 3}
    assert found["chosen"]["command"].startswith("cloze pretrain ")


@pytest.mark.parametrize("columns", [80, 100])
def test_a_person_s_plan_fits_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = told(capsys, *AS_TYPED, "--global-batch", "64", "--length", "32")
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    words = " ".join(out.split())
    for word in ("355M parameters", "64 h100", "GPU-hours", "cloze pretrain", "careful:"):
        assert word in words, word
    assert "…" not in out, "nothing is cut off"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["roberta-large", "--tokens", "many"], "'many' is not an integer; write 10M, 300e9"),
        (["roberta-large", "--tokens", "nan"], "'nan' is not an integer"),
        (["roberta-large", "--tokens", "1e9", "--gpus", "0"], "0 is not in the range"),
        (["roberta-larg", "--tokens", "1e9"], "did you mean 'roberta-large'"),
        (["roberta-large"], "Missing option '--tokens'"),
        (["--tokens", "1e9"], "Missing argument"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    code, out, err = told(capsys, "plan-training", *arguments)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_size_is_planned_with_what_follows_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan-training", "17m", "--gpus", "1", "--gpu-type", "h100", "--tokens", "1e11"]
    code, out, _ = told(capsys, *arguments, "--json")
    plan: dict[str, Any] = json.loads(out)
    assert code == 0
    assert plan["parameters"] == pytest.approx(17e6, rel=0.02)
    assert "--size 17m" in plan["chosen"]["command"]
    assert "7 layers of 256" in plan["assumptions"][0]
    assert told(capsys, *arguments, "--global-batch", "64", "--json")[1].count("global_batch") == 1


def test_models_stand_side_by_side_with_their_speed_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    models = ("bert-large", "albert-large", "bert-base")
    options = ("--gpus", "8", "--gpu-type", "v100", "--tokens", "1e11")
    code, out, _ = told(capsys, "plan-training", *models, *options, "--json")
    plans = json.loads(out)["plans"]
    assert code == 0
    for model, plan in zip(models, plans, strict=True):
        alone = json.loads(told(capsys, "plan-training", model, *options, "--json")[1])
        assert plan == alone
    code, out, _ = told(capsys, "plan-training", *models, *options)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "\u2026" not in out
    hours = [plan["chosen"]["hours"] for plan in plans]
    for model, own in zip(models, hours, strict=True):
        (row,) = (line for line in out.splitlines() if line.strip().startswith(model))
        assert row.split()[-1] == f"{hours[0] / own:.2g}x"
    assert "- v100" in out or "v100:" in out


def test_what_some_models_of_several_assume_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    models = ("17m", "bert-base", "34m")
    options = ("--gpus", "8", "--gpu-type", "h100", "--tokens", "1e9")
    code, out, _ = told(capsys, "plan-training", *models, *options)
    assert code == 0
    lines = out.splitlines()
    assert sum(line.startswith("- 17m, 34m: optimizer muon") for line in lines) == 1
    assert sum(line.startswith("- 34m: learning_rate 0.0013") for line in lines) == 1
    assert sum(line.startswith("- h100:") for line in lines) == 1


def test_one_model_of_several_that_does_not_fit_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = ("bert-base", "megatron-bert-3.9b")
    options = ("--gpus", "1", "--gpu-type", "rtx-4090", "--tokens", "1e9")
    code, out, err = told(capsys, "plan-training", *models, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "megatron-bert-3.9b at length 512 takes" in err
