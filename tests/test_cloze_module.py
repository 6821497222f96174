"""`import cloze`: its examples are true, it imports nothing heavy by itself, and it says what a
checkpoint cannot do.
"""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloze
from cloze.model import checkpoint
from cloze.model.families.models import new_backbone
from cloze.model.tasks.table import load_task
from tests.tiny_models import tiny_config, write_checkpoint, write_classifier, write_tokenizer

VERBS = {
    name: verb
    for name, verb in inspect.getmembers(cloze.Checkpoint, inspect.isfunction)
    if not name.startswith("_")
}
EXAMPLES = [found for found in doctest.DocTestFinder().find(cloze) if found.examples]


def write_tuned(directory: Path, name: str, meaning: dict[str, Any]) -> None:
    """A checkpoint of a task, of random weights."""
    task, config = load_task(name), tiny_config()
    network = task.network(new_backbone(config), config, meaning, 0.0)
    checkpoint.save_weights(
        str(directory),
        model=config,
        state=network.state_dict(),
        tokenizer=write_tokenizer(directory.parent / f"scratch-{name}"),
        heads=task.heads(meaning),
        task={"name": name, "options": {}, "max_length": 16, **meaning},
    )
    checkpoint.finalize(str(directory))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints that the examples name."""
    base = tmp_path_factory.mktemp("cloze")
    write_checkpoint(base / "W" / "pretrain", base / "scratch")
    write_checkpoint(base / "W" / "gpt2", base / "scratch-gpt2", family="gpt2")
    write_classifier(base / "W" / "sst2", base / "scratch-classifier")
    write_tuned(base / "W" / "squad", "squad", {})
    write_tuned(
        base / "W" / "ner", "conll2003", {"labels": ["O", "B-PER", "I-PER"], "scheme": "IOB1"}
    )
    write_tuned(base / "W" / "stsb", "stsb", {"mean": 2.5, "lowest": 0.0, "highest": 5.0})
    write_tuned(base / "W" / "swag", "swag", {"labels": ["0", "1"]})
    return base


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda found: found.name)
def test_the_examples_are_true(example: doctest.DocTest) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    told: list[str] = []
    runner.run(example, out=told.append)
    assert "".join(told) == ""
    assert runner.summarize(verbose=False).attempted == len(example.examples)


def test_everything_public_is_named_and_has_an_example() -> None:
    assert sorted(cloze.__all__) == ["Checkpoint", "ClozeError", "DataError", "UsageError", "load"]
    assert {found.name.rpartition(".")[2] for found in EXAMPLES} == {"load", *VERBS}


def test_importing_it_is_light_and_using_it_needs_nothing_of_the_command_line() -> None:
    code = (
        "import sys, cloze; heavy = {'torch', 'numpy', 'pyarrow', 'transformers'} & "
        "set(sys.modules); assert not heavy, heavy;"
        " cloze.load('W/pretrain').fill_mask('a [MASK]');"
        " other = {'flows', 'prefect', 'mlflow', 'apache_beam', 'deepspeed', 'click'} & "
        "set(sys.modules); assert not other, other"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


def test_a_verb_that_a_checkpoint_cannot_do_says_so() -> None:
    with pytest.raises(cloze.UsageError, match="was pretrained, not fine-tuned"):
        cloze.load("W/pretrain").answer("who?", "the cat")
    with pytest.raises(cloze.UsageError, match="was pretrained, not fine-tuned"):
        cloze.load("W/pretrain").classify("the cat")
    with pytest.raises(cloze.UsageError, match="has no masked_lm head"):
        cloze.load("W/squad").fill_mask("the [MASK]")
    with pytest.raises(cloze.UsageError, match="answers no questions"):
        cloze.load("W/sst2").answer("who?", "the cat")
    with pytest.raises(cloze.UsageError, match="no labels to texts"):
        cloze.load("W/squad").classify("the cat")
    with pytest.raises(cloze.UsageError, match="tags no words"):
        cloze.load("W/sst2").tag("the cat")
    with pytest.raises(cloze.UsageError, match="give a list of texts"):
        cloze.load("W/sst2").embed("the cat")
    with pytest.raises(cloze.UsageError, match="has no masked_lm or lm head"):
        cloze.load("W/sst2").score("the cat")


def test_classify_gives_numbers_and_choices_where_the_task_does() -> None:
    (found,) = cloze.load("W/stsb").classify("the cat sat.", "a cat sat.")
    assert list(found) == ["score"]
    with pytest.raises(cloze.UsageError, match="give each text its pair"):
        cloze.load("W/stsb").classify("the cat sat.")
    ranked = cloze.load("W/swag").classify("the cat", choices=["sat.", "ran in the park."])
    assert {choice["text"] for choice in ranked} == {"sat.", "ran in the park."}
    with pytest.raises(cloze.UsageError, match="two or more choices"):
        cloze.load("W/swag").classify("the cat")


def test_vectors_of_texts_together_are_those_alone() -> None:
    model, texts = cloze.load("W/squad"), ["the cat sat.", "a dog ran in the park.", "paris"]
    together = model.embed(texts)
    assert together.dtype == np.float32
    np.testing.assert_allclose(
        together, np.concatenate([model.embed([text]) for text in texts]), atol=1e-5
    )
    assert np.abs(together[0] - together[1]).max() > 0.01


def test_a_checkpoint_stays_where_it_was_when_it_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cloze.load("W/pretrain")
    monkeypatch.chdir(tmp_path)
    assert len(model.fill_mask("the [MASK]", top_k=1)) == 1
