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
EXAMPLES = [
    found
    for module in (cloze, cloze.checkpoint)
    for found in doctest.DocTestFinder().find(module)
    if found.examples
]


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
    example.globs["load"] = cloze.load
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
    with pytest.raises(cloze.UsageError, match="has no masked_lm or lm head"):
        cloze.load("W/sst2").score("the cat")


# Each method, a checkpoint for it, and the arguments of one call.
CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fill_mask": ("W/pretrain", ("the [MASK] sat.",)),
    "generate": ("W/gpt2", ("the cat",)),
    "answer": ("W/squad", ("where is the cat?", "the cat sat in paris.")),
    "classify": ("W/sst2", ("the dog ran in the park.",)),
    "tag": ("W/ner", ("The cat sat in Paris.",)),
    "embed": ("W/pretrain", ("the cat sat.",)),
    "score": ("W/pretrain", ("the cat sat.",)),
    "attention": ("W/pretrain", ("the cat sat.",)),
}


def call(method: str, *arguments: Any) -> Any:
    return getattr(cloze.load(Path(CALLS[method][0])), method)(*arguments)


def same(one: Any, other: Any) -> bool:
    """Equal to rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float | np.ndarray):
        return bool(np.allclose(one, other, atol=1e-5))
    return bool(one == other)


def test_every_method_is_called() -> None:
    assert set(CALLS) | {"batch"} == set(VERBS)


@pytest.mark.parametrize("method", CALLS)
def test_one_text_or_a_list(method: str) -> None:
    """A list of texts gives a list of what each gives; so does anything that can be iterated."""
    _, arguments = CALLS[method]
    alone = call(method, *arguments)
    for several in (
        [[argument] * 2 for argument in arguments],
        [iter([argument] * 2) for argument in arguments],
        [np.array([argument] * 2) for argument in arguments],
    ):
        together = call(method, *several)
        assert len(together) == 2
        assert same(together[0], alone)
        assert same(together[1], alone)
    nothing = call(method, *([] for _ in arguments))
    assert len(nothing) == 0
    assert type(nothing) is type(together)
    if method == "embed":
        assert nothing.dtype == np.float32
        assert nothing.shape == (0, 16)
        assert alone.shape == (16,)


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        float("nan"),
        b"the cat",
        {"text": "a"},
        [None],
        ["a", float("nan")],
        [b"a"],
        "",
        [" "],
    ],
    ids=repr,
)
def test_what_is_no_text_is_an_error_of_cloze(method: str, wrong: Any) -> None:
    _, arguments = CALLS[method]
    for place in range(len(arguments)):
        with pytest.raises(cloze.ClozeError):
            call(method, *arguments[:place], wrong, *arguments[place + 1 :])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *(("fill_mask", {"top_k": wrong}) for wrong in (0, -1, 1.5, None, "many")),
        *(("answer", {"top_k": wrong}) for wrong in (0, "x")),
        *(("generate", {name: -1}) for name in ("tokens", "samples", "temperature", "seed")),
        ("generate", {"top_p": 2}),
        ("classify", {"pair": "a cat"}),
        ("classify", {"pair": ["a cat"]}),
        ("classify", {"choices": ["a", "b"]}),
        ("attention", {"pairs": ["a", "b"]}),
        ("answer", {"passage": ["a", "b"]}),
    ],
)
def test_wrong_options_are_errors_of_cloze(method: str, options: dict[str, Any]) -> None:
    _, arguments = CALLS[method]
    first = arguments[: 1 if set(options) & {"passage"} else None]
    with pytest.raises(cloze.UsageError):
        getattr(cloze.load(CALLS[method][0]), method)(*first, **options)


@pytest.mark.parametrize(
    ("verb", "requests"),
    [
        ("classify", [None]),
        ("classify", [3]),
        ("classify", [{"text": b"a"}]),
        ("classify", [{1: "a"}]),
        ("embed", 3),
        ("tag", [""]),
        ("nonsense", ["a"]),
    ],
)
def test_wrong_requests_are_errors_of_cloze(verb: str, requests: Any) -> None:
    where = {"classify": "W/sst2", "tag": "W/ner"}.get(verb, "W/pretrain")
    with pytest.raises(cloze.ClozeError) as failed:
        list(cloze.load(where).batch(verb, requests))
    if requests == [None]:
        assert "it has text" not in str(failed.value)


def test_a_batch_of_one_text_has_one_answer() -> None:
    assert len(list(cloze.load("W/sst2").batch("classify", "the cat"))) == 1
    assert len(list(cloze.load("W/sst2").batch("classify", {"text": "the cat"}))) == 1
    with pytest.raises(cloze.UsageError, match="nonsense"):  # at the call, not at the first answer
        cloze.load("W/sst2").batch("nonsense", ["the cat"])


@pytest.mark.parametrize("wrong", [None, 3, b"W/pretrain", ["W/pretrain"]])
def test_what_is_no_path_is_an_error_of_cloze(wrong: Any) -> None:
    with pytest.raises(cloze.UsageError, match="path"):
        cloze.load(wrong)


def test_unknown_devices_and_precisions_are_refused_at_once() -> None:
    for option in ({"device": "gpu"}, {"precision": "fp16"}):
        wrong: dict[str, Any] = option
        with pytest.raises(cloze.UsageError, match=next(iter(option))):
            cloze.load("W/pretrain", **wrong)


def test_the_code_of_the_page_runs(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """docs/reference/python.md, with a checkpoint where the page has its own."""
    page = (Path(__file__).parent.parent / "docs/reference/python.md").read_text(encoding="utf-8")
    blocks, names = page.split("```python\n")[1:], dict[str, Any]()
    assert blocks
    for block in blocks:
        code = block.split("```")[0].replace("runs/demo/pretrain", "W/pretrain")
        code = code.replace("runs/demo/finetune", "W/sst2")
        exec(compile(code, "python.md", "exec"), names)


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
