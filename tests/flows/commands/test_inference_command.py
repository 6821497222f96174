"""An inference command takes its options from the verb's config alone: no name of a field means anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cloze.core.config import InputPath
from cloze.flows.commands.base.inference_command import InferenceCommand
from cloze.flows.commands.base.options import OptionOverride
from cloze.flows.graph import command, stages
from cloze.flows.run import targets
from cloze.model.use.configs import VerbConfig
from cloze.model.use.verb import Predictor, verb_stage


class ShelfConfig(VerbConfig):
    """Options of a verb of somebody else."""

    shelf: InputPath | None = None
    """A path that no verb of ours has."""

    corpus: str = "none"
    """A word, whatever other verbs call a corpus."""

    words: int = 3
    """A number."""

    npy: str = ""
    """What `embed` hides."""

    secret: int = 1
    """What this verb hides."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Values that the command hands to its stage."""
    found: dict[str, Any] = {}

    def run(name: str, values: Any, checkpoint: str, receive: Any, report: Any) -> dict[str, Any]:
        found.update(values)
        receive([{"index": 0}])
        return {"answered": 1}

    monkeypatch.setattr(command, "run_inference", run)
    monkeypatch.setattr(targets, "resolve_path", lambda target: f"/runs/{target}")
    stage = verb_stage("shelve", Predictor(ShelfConfig, "no.module:here"))
    monkeypatch.setitem(stages.TOOLS, "shelve", stage)
    return found


def shelve(*arguments: str, **settings: Any) -> str:
    made = InferenceCommand("shelve", show=str, **settings)
    result = CliRunner().invoke(
        made, ["mine/pretrain", "a text", *arguments], catch_exceptions=False
    )
    return result.output


def test_a_path_of_any_name_may_be_a_node_of_a_run(asked: dict[str, Any]) -> None:
    shelve("--shelf", "mine/index", "--corpus", "wide", "--words", "7", "--npy", "x", "--json")
    assert (asked["shelf"], asked["corpus"]) == ("/runs/mine/index", "wide")
    assert (asked["words"], asked["npy"]) == (7, "x")


def test_a_verb_says_how_its_fields_are_spelled(asked: dict[str, Any]) -> None:
    spelled = {"words": OptionOverride("--most"), "secret": None}
    shelve("--most", "9", "--json", spelled=spelled)
    assert asked["words"] == 9
    assert "Error: No such option" in shelve("--secret", "2", spelled=spelled)
    context = click.Context(InferenceCommand("shelve", show=str, spelled=spelled))
    options = {name for each in context.command.get_params(context) for name in each.opts}
    assert options >= {"--most", "--shelf", "--corpus", "--npy"}
    assert not options & {"--words", "--secret", "--requests", "--called", "--common"}


def test_the_file_is_read_as_it_is_called(asked: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    made = InferenceCommand("shelve", show=str)
    CliRunner().invoke(made, ["c", "--file", str(tmp_path / "texts.jsonl")], catch_exceptions=False)
    assert (asked["jsonl"], asked["called"]) == (True, str(tmp_path / "texts.jsonl"))
