"""Near names in messages: a typing error finds its name; what is not near is not suggested."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.errors import did_you_mean
from cloze.flows.cli import command_names
from cloze.flows.commands.help_topics import TOPICS
from cloze.flows.graph import config as configs
from cloze.model.tasks.table import TASKS

COMMANDS = [*command_names(), *TOPICS]
FILES = ["mine.yaml", "night1.yaml", "runs/mine.yaml", *configs.preset_names()]
LISTS = {"commands": COMMANDS, "files": FILES, "tasks": list(TASKS)}


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("lenght", "commands"),  # nightly
        ("batch", "commands"),  # fetch
        ("mask", "commands"),  # tasks
        ("version", "tasks"),
        ("nofile.yaml", "files"),  # mine.yaml: the ending is no likeness
        ("my.yaml", "files"),
        ("config.yaml", "files"),  # night1.yaml
        ("runs/nofile.yaml", "files"),  # nor is the directory
        ("agnews", "tasks"),  # newsqa
        ("xlnet", "files"),
    ],
)
def test_what_is_not_near_is_not_suggested(word: str, names: str) -> None:
    assert did_you_mean(word, LISTS[names], "see the list") == "see the list"


@pytest.mark.parametrize(
    ("word", "names", "near"),
    [
        ("MNLI", "tasks", "mnli"),
        ("SST-2", "tasks", "sst2"),
        ("ret", "tasks", "rte"),
        ("Bert_Base", "files", "bert-base"),
        ("mine.yml", "files", "mine.yaml"),
        ("runs/mien.yaml", "files", "runs/mine.yaml"),
        ("fine-tune", "commands", "finetune"),
        ("urn", "commands", "run"),
        ("vocabulary", "commands", "vocab"),
    ],
)
def test_a_name_written_otherwise_is_found(word: str, names: str, near: str) -> None:
    assert did_you_mean(word, LISTS[names], "see the list") == f"did you mean {near!r}?"


@given(st.data())
def test_one_wrong_letter_finds_the_name(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name in COMMANDS if len(name) > 3]))
    place = data.draw(st.integers(1, len(name) - 2))
    kind = data.draw(st.sampled_from(["twice", "without", "swapped"]))
    middle = {
        "twice": name[place] * 2 + name[place + 1],
        "without": name[place + 1],
        "swapped": name[place + 1] + name[place],
    }[kind]
    word = name[:place] + middle + name[place + 2 :]
    found = did_you_mean(word, COMMANDS, "none").removeprefix("did you mean '")[:-2]
    assert found in COMMANDS
    if found != name:  # another is as near, such as `train` for `trai`
        assert found.startswith(word[:place])
