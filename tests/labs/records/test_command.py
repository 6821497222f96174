"""cloze record: three trainings entered, verified with and without their artifacts; bad input."""

from __future__ import annotations

import functools
import gzip
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cloze.core import errors
from cloze.core.artifacts import artifact
from cloze.core.config import parse_config
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.flows.cli import cloze
from cloze.flows.graph import stages
from cloze.flows.graph.config import samples_directory
from cloze.flows.tracking import metadata
from cloze.labs.records import record
from tests import warm

RUNS = ("s1/pretrain", "s2/pretrain", "s3/pretrain")
MODEL = {"preset": "modern-tiny", "hidden_size": 16, "num_attention_heads": 2}


def build(base: Path, out: str, values: dict[str, Any], **inputs: str) -> str:
    name = out.rpartition("/")[2]
    definition = stages.TABLE[name]
    path = str(base / out)
    execution = Execution(threads=1, device="cpu", compile=False)
    config = parse_config(definition.config, values, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm.python())
        execute(definition, config, inputs, path, execution=execution)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts of a text, three seeds, and a book without records."""
    base = tmp_path_factory.mktemp("record")
    source = {"kind": "books", "path": str(samples_directory() / "books")}
    settings = {"sources": [source], "heldout_fraction": 0.3}
    corpus = build(base, "data/corpus", settings)
    vocab = build(base, "data/vocab", {"kind": "wordpiece", "size": 400}, corpus=corpus)
    dataset = build(
        base, "data/dataset", {"recipe": "roberta", "length": 32, "mask_copies": 1},
        corpus=corpus, vocab=vocab,
    )  # fmt: skip
    for seed, run in enumerate(RUNS, 1):
        training = {"model": MODEL, "steps": 2, "global_batch": 4, "seed": seed}
        build(base, run, training, dataset=dataset)
    book = {
        "text": {
            name: artifact.read_manifest(path).content_sha256
            for name, path in (("corpus", corpus), ("vocab", vocab))
        },
        "heldout": artifact.read_manifest(dataset).content_sha256,
        "tracks": {"low": {"title": "lowest loss", "steps": 2}, "few": {"title": "", "goal": 2.0}},
    }
    (base / "book").mkdir()
    (base / "book" / "book.yaml").write_text(yaml.safe_dump(book))
    return base


@pytest.fixture
def world(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `trained`, which is the working directory; the program is a clean checkout."""
    shutil.copytree(trained, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    tags = {"mlflow.source.git.commit": "abcdef0123", "cloze.modified": "false"}
    monkeypatch.setattr(metadata, "tags", lambda: tags)
    return tmp_path / "world"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cloze, ["record", "--book", "book", *arguments])


def judged(*arguments: str, track: str = "low") -> Result:
    return run(*RUNS, "--track", track, "--dataset", "data/dataset", *arguments)


def exit_code(result: Result) -> int:
    assert isinstance(result.exception, errors.ClozeError)
    return result.exception.exit_code


@pytest.mark.soak
def test_a_record_is_entered_and_verified(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = functools.cache(record._loss)  # once: each is a process
    monkeypatch.setattr(record, "_loss", scored)
    entered = judged("--enter", "first steps", "--json")
    assert entered.exit_code == 0, entered.exception
    losses = json.loads(entered.stdout)["losses"]
    assert all(5.5 < loss < 6.5 for loss in losses)  # ln 400 = 5.99
    assert len(set(losses)) == 3

    table = run().stdout
    assert "first steps" in table
    assert "abcdef01" in table
    assert all(f"{loss:.3f}" in table for loss in losses)
    assert "as 'first steps' in the book" in judged().stdout
    assert exit_code(judged("--enter", "again")) == errors.UsageError.exit_code

    # The log is believed no more than the weights: another loss in it does not survive a rescore.
    from cloze.labs.records.record_book import Book

    book = Book.load(Path("book"))
    logs = [
        json.loads(gzip.decompress((Path("book/logs") / f"{log}.json.gz").read_bytes()))
        for log in book.records[0].logs
    ]
    logs[1]["loss"] -= 2 * record.TOLERANCE
    forged = book.records.pop()
    forged.logs.clear()
    book.enter(forged, logs, Path("book"))
    assert run().exit_code == 0
    refused = judged()
    assert exit_code(refused) == errors.DataError.exit_code
    assert "seed 2 has loss" in str(refused.exception)

    weights = next((world / RUNS[2]).glob("checkpoints/*/model.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    refused = judged()
    assert exit_code(refused) == errors.DataError.exit_code
    assert "s3/pretrain was changed" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((*RUNS, "--track", "low"), "give both"),
        ((*RUNS, "--track", "lowest", "--dataset", "data/dataset"), "no track 'lowest'"),
        ((*RUNS, "--track", "low", "--dataset", "data/vocab"), "not the dataset of the book"),
        ((*RUNS[:2], "--track", "low", "--dataset", "data/dataset"), "give 3 different"),
        ((*RUNS, "--track", "few", "--dataset", "data/dataset"), "not surely below 2.0"),
        (("data/vocab", "--track", "low", "--dataset", "data/dataset"), "'vocab'"),
    ],
)
def test_bad_input_is_one_sentence(
    world: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], fault: str
) -> None:
    monkeypatch.setattr(record, "_loss", lambda path, _: 4 + ord(path[1]) / 99)
    refused = run(*arguments)
    assert exit_code(refused) == errors.UsageError.exit_code
    assert fault in str(refused.exception)


@pytest.mark.parametrize("objective", ["mntp", "clm"])
def test_masked_tokens_alone_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    (tmp_path / "losses.json").write_text(json.dumps({"objective": objective}))
    summary = {"metrics": {"heldout_loss": 1.5}, "losses": "losses.json"}
    result = SimpleNamespace(artifact=str(tmp_path), manifest=SimpleNamespace(summary=summary))
    monkeypatch.setattr(record, "run_stage", lambda arguments, keep: keep(result))
    if objective == "mntp":
        assert record._loss("run", "dataset") == 1.5
    else:
        with pytest.raises(errors.UsageError, match="run is scored by clm"):
            record._loss("run", "dataset")


def test_changed_text_is_found(world: Path) -> None:
    shard = next((world / "data" / "corpus").glob("*.arrow"))
    shard.write_bytes(shard.read_bytes() + b" ")
    refused = judged()
    assert exit_code(refused) == errors.DataError.exit_code
    assert "data/corpus was changed" in str(refused.exception)


def test_a_modified_program_enters_nothing(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_loss", lambda path, _: 4 + ord(path[1]) / 99)
    metadata.tags()["cloze.modified"] = "true"
    refused = judged("--enter", "mine")
    assert exit_code(refused) == errors.UsageError.exit_code
    assert "commit its changes" in str(refused.exception)
    assert not (world / "book" / "logs").exists()
