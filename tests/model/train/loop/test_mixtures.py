"""Training on several datasets: exact on resume and on any number of ranks, counted by dataset, and
what cannot be mixed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.model import checkpoint
from cloze.model.hub.card import model_card
from cloze.model.train.stage import STAGE
from tests.model.datasets import lines, strip_timing, write_dataset
from tests.model.train.ranks import STILL, config, digests, here, inputs_of, job, run_all

MIXED = config(steps=9, log_every=1, mixture={"wiki": 2, "books": 1}, milestones=(4,))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("data")
    return {
        "wiki": write_dataset(
            place / "wiki", rows=50, seed=1, masks={"rule": "token", "rate": 0.15}
        ),
        "books": write_dataset(
            place / "books", rows=30, copies=3, seed=2, masks={"rule": "token", "rate": 0.15}
        ),
        "alone": write_dataset(place / "alone", rows=40, seed=3),
        "long": write_dataset(place / "long", length=40, seed=4),
        "unpaired": write_dataset(place / "unpaired", pair_task=None, seed=5),
        "other": write_dataset(place / "other", vocab_size=80, seed=6),
    }


def some(data: dict[str, str], *names: str) -> dict[str, str]:
    return {name: data[name] for name in names}


def logged(run: Path) -> list[dict[str, Any]]:
    return [strip_timing(line) for line in lines(run / "metrics.jsonl")]


def last(run: Path) -> dict[str, str]:
    found = digests(max(run.glob("checkpoints/step-*")))
    return {
        name: found[name]
        for name in ("model.safetensors", "training/optimizer.safetensors", "config.json")
    }


def newest(run: Path) -> dict[str, str]:
    return {"continue": str(max(run.glob("checkpoints/step-*")))}


@pytest.fixture(scope="module")
def straight(data: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "pretrain"
    here(MIXED, some(data, "wiki", "books"), out, micro_batch=4)
    return out


def test_stopped_and_resumed_it_is_the_same_training(
    data: dict[str, str], straight: Path, tmp_path: Path
) -> None:
    """Dropout is on. The datasets are named in another order: names, not places, tell
    them apart.
    """
    both = some(data, "books", "wiki")
    here(MIXED, both, tmp_path / "halves", micro_batch=4, stop_at=3)
    here(MIXED, both, tmp_path / "halves", micro_batch=4, stop_at=7)
    here(MIXED, both, tmp_path / "halves", micro_batch=4)
    assert last(tmp_path / "halves") == last(straight)
    assert logged(tmp_path / "halves") == logged(straight)


def test_rows_tokens_and_epochs_of_each_are_counted(data: dict[str, str], straight: Path) -> None:
    found = logged(straight)
    rows = [(line["rows_wiki"], line["rows_books"]) for line in found]
    assert [sum(both) for both in rows] == [8 * step for step in range(1, 10)]
    for line in found:
        assert line["tokens_wiki"] + line["tokens_books"] == line["tokens"]
        assert line["epochs_wiki"] == round(line["rows_wiki"] / 50, 4)
        assert line["epochs_books"] == round(line["rows_books"] / 30, 4)
    assert 36 <= rows[-1][0] <= 60  # of 72 rows two thirds
    measured = [line for line in found if "heldout_loss" in line]
    assert measured
    for line in measured:  # of four rows each, at least
        assert min(line["heldout_loss_wiki"], line["heldout_loss_books"]) < line["heldout_loss"]
        assert line["heldout_loss"] < max(line["heldout_loss_wiki"], line["heldout_loss_books"])
    path = str(max(straight.glob("checkpoints/step-*")))
    told = {one["name"]: one for one in checkpoint.load_metadata(path).datasets}
    assert (told["wiki"]["rows"], told["books"]["rows"]) == rows[-1]
    assert told["wiki"]["share"] == pytest.approx(2 / 3, abs=1e-4)
    card = model_card(checkpoint.load(path), "BertForPreTraining")
    assert f"| Mixed from | `books` 33.3%, {rows[-1][1]} rows" in card


def test_two_ranks_train_on_the_rows_of_one(data: dict[str, str], tmp_path: Path) -> None:
    settings = config(
        steps=3, log_every=1, grad_clip=100.0, model=STILL, mixture={"wiki": 2, "books": 1}
    )
    both = some(data, "wiki", "books")
    here(settings, both, tmp_path / "one", micro_batch=8)
    run_all(
        [
            job(settings, both, tmp_path / f"zero{zero}", micro_batch=2, zero=zero)
            for zero in (0, 2)
        ],
        2,
    )
    for run in ("zero0", "zero2"):
        for ours, theirs in zip(logged(tmp_path / run), logged(tmp_path / "one"), strict=True):
            exact = (
                "tokens",
                "rows_wiki",
                "rows_books",
                "tokens_wiki",
                "tokens_books",
                "epochs_wiki",
                "epochs_books",
            )
            assert [ours[name] for name in exact] == [theirs[name] for name in exact]
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=3e-6)
            if "heldout_loss_wiki" in theirs:
                assert ours["heldout_loss_wiki"] == pytest.approx(
                    theirs["heldout_loss_wiki"], abs=1e-5
                )


def test_a_growing_batch_takes_the_same_rows(data: dict[str, str], tmp_path: Path) -> None:
    """36 rows in a step of 4 and four of 8 are those of nine steps of 4."""
    both = some(data, "wiki", "books")
    here(
        config(steps=5, log_every=1, initial_batch=4, batch_ramp_steps=2), both, tmp_path / "grown"
    )
    here(config(steps=9, log_every=1, global_batch=4), both, tmp_path / "even")
    grown, even = logged(tmp_path / "grown"), logged(tmp_path / "even")
    assert grown[-1]["tokens"] == even[-1]["tokens"]
    assert grown[-1]["rows_books"] == even[-1]["rows_books"]


def test_a_phase_over_another_mixture_goes_on_in_each_dataset(
    data: dict[str, str], straight: Path, tmp_path: Path
) -> None:
    before = {
        one["name"]: one["rows"]
        for one in checkpoint.load_metadata(newest(straight)["continue"]).datasets
    }
    second = config(steps=4, log_every=1, mixture={"wiki": 1, "books": 3})
    here(second, some(data, "wiki", "books"), tmp_path / "second", more=newest(straight))
    final = logged(tmp_path / "second")[-1]
    assert final["epochs_wiki"] == round((before["wiki"] + final["rows_wiki"]) / 50, 4)
    assert final["rows_wiki"] + final["rows_books"] == 32
    here(
        config(steps=2, log_every=1),
        data["books"],
        tmp_path / "third",
        more=newest(tmp_path / "second"),
    )
    state = json.loads(
        (
            max((tmp_path / "third").glob("checkpoints/step-*")) / "training" / "state.json"
        ).read_text()
    )
    assert state["run"]["start_position"]["sample"] == before["books"] + final["rows_books"]
    assert state["samples"] == before["books"] + final["rows_books"] + 16


def test_two_phases_over_one_mixture_are_one_training(data: dict[str, str], tmp_path: Path) -> None:
    both = some(data, "wiki", "books")
    here(config(steps=6, schedule_steps=6, log_every=1), both, tmp_path / "whole")
    here(config(steps=3, schedule_steps=6, log_every=1), both, tmp_path / "first")
    here(
        config(steps=3, schedule_steps=6, log_every=1),
        both,
        tmp_path / "second",
        more=newest(tmp_path / "first"),
    )
    found, whole = last(tmp_path / "second"), last(tmp_path / "whole")
    assert found["model.safetensors"] == whole["model.safetensors"]


def test_without_weights_every_row_counts_alike(data: dict[str, str], tmp_path: Path) -> None:
    run = here(config(steps=1), some(data, "wiki", "books"), tmp_path / "run")
    assert run.outcome is not None
    shares = {one["name"]: one["share"] for one in run.outcome.summary["datasets"]}
    assert shares == pytest.approx({"wiki": 5 / 8, "books": 3 / 8}, abs=1e-4)


@pytest.mark.parametrize(
    ("names", "values", "sentence"),
    [
        (
            ("wiki", "books"),
            {"mixture": {"wiki": 1, "books": 1e-9}},
            "less than 1 in 65,536 cannot be drawn",
        ),
        (("alone", "other"), {}, "differ in their vocabulary"),
        (
            ("alone", "long"),
            {},
            "differ in their length .32 and 40. and cannot be mixed; make both with one --length",
        ),
        (("alone", "unpaired"), {}, "differ in their pair task"),
        (("alone", "wiki"), {}, "differ in their masking"),
    ],
)
def test_what_cannot_be_mixed_is_said_in_a_sentence(
    data: dict[str, str],
    tmp_path: Path,
    names: tuple[str, ...],
    values: dict[str, Any],
    sentence: str,
) -> None:
    given: Any = some(data, *names) if len(names) > 1 else data[names[0]]
    with pytest.raises(UsageError, match=sentence):
        here(config(**values), given, tmp_path / "run")
    assert not list(tmp_path.glob("run/checkpoints/*"))


@pytest.mark.parametrize(
    ("names", "values", "sentence"),
    [
        (
            "wiki books",
            {"mixture": {"wiky": 1, "books": 1}},
            "'wiky', which is no dataset of this training; did you mean 'wiki'",
        ),
        ("wiki books", {"mixture": {"wiki": 1}}, "no weight of 'books'"),
        ("wiki", {"mixture": {"wiki": 1}}, "this training reads one"),
    ],
)
def test_weights_of_what_is_not_read_are_refused_before_anything_is_done(
    data: dict[str, str], tmp_path: Path, names: str, values: dict[str, Any], sentence: str
) -> None:
    given = some(data, *names.split()) if " " in names else data[names]
    with pytest.raises(UsageError, match=sentence):
        execute(STAGE, config(**values), inputs_of(given, {}), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_dataset_under_two_names_is_refused(data: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="datasets a and b are the same one"):
        here(config(), {"a": data["wiki"], "b": data["wiki"]}, tmp_path / "run")


def test_the_fingerprint_is_of_all_datasets_and_their_weights(
    data: dict[str, str], tmp_path: Path
) -> None:
    def made(name: str, **values: Any) -> str:
        inputs = {f"dataset/{one}": data[one] for one in ("wiki", "books")}
        run = execute(
            STAGE,
            config(steps=1, **values),
            inputs,
            str(tmp_path / name),
            execution=Execution(threads=1, device="cpu"),
        )
        assert set(run.manifest.parents) == {"dataset/wiki", "dataset/books"}
        return run.manifest.fingerprint

    plain, weighed = made("plain"), made("weighed", mixture={"wiki": 2, "books": 1})
    assert plain != weighed
    alone = config(steps=1)
    assert "mixture" not in alone.fingerprint_fields()
