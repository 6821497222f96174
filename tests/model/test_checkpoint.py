"""Checkpoints: complete or none, damage is named, the newest undamaged one counts, and no pickle is
ever opened.
"""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cloze.core.artifacts import artifact, checkpoint_files, checkpoints
from cloze.core.artifacts.artifact import Manifest
from cloze.core.errors import DataError, NotFiniteWeightsError
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.tensors import read_tensors, write_tensors
from tests.tiny_models import dataset_info, tiny_config, tiny_model, write_checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch"))


def flip_byte(path: Path, place: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def test_everything_comes_back(directory: Path, tmp_path: Path) -> None:
    loaded = checkpoint.load(str(directory))
    assert (loaded.model, loaded.step, loaded.task) == (tiny_config(), 5, None)
    assert loaded.heads == ModelConfig.heads
    assert loaded.dataset == dataset_info(loaded.tokenizer)
    assert sorted(path.name for path in Path(loaded.tokenizer).iterdir())[-1] == "vocab.txt"
    expected = tiny_model().state_dict()
    assert loaded.state.keys() == expected.keys()
    assert all(loaded.state[name].equal(tensor) for name, tensor in expected.items())


def test_weights_are_stored_in_fp32_whatever_they_were(tmp_path: Path, directory: Path) -> None:
    out = str(tmp_path / "other")
    state = {
        "a": torch.ones(2, dtype=torch.bfloat16),
        "b": torch.ones(3, dtype=torch.float64).expand(2, 3),
        "c": torch.arange(3),
    }
    pieces = str(directory / "tokenizer")
    checkpoint.save_weights(out, model=tiny_config(), state=state, tokenizer=pieces, heads={})
    checkpoint.finalize(out)
    found = checkpoint.load(out).state
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        "a": torch.float32,
        "b": torch.float32,
        "c": torch.int64,
    }


def test_the_same_checkpoint_is_the_same_bytes(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path / "1", tmp_path / "scratch1")
    second = write_checkpoint(tmp_path / "2", tmp_path / "scratch2")
    names = [path.relative_to(first) for path in sorted(Path(first).rglob("*")) if path.is_file()]
    assert all(
        (Path(first) / name).read_bytes() == (Path(second) / name).read_bytes() for name in names
    )


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer/vocab.txt"])
def test_a_flipped_byte_is_named(directory: Path, name: str) -> None:
    flip_byte(directory / name)
    with pytest.raises(DataError, match=f"{name} has sha256"):
        checkpoint.load(str(directory))


def test_a_cut_or_missing_file_is_named(directory: Path) -> None:
    weights = directory / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-10])
    with pytest.raises(DataError, match=r"model\.safetensors has .* bytes"):
        checkpoint.load(str(directory))
    weights.unlink()
    with pytest.raises(DataError, match=r"model\.safetensors is missing"):
        checkpoint.load(str(directory))


def test_a_damaged_list_of_files_is_named(directory: Path) -> None:
    (directory / "checkpoint.json").write_text("{")
    with pytest.raises(DataError, match=r"checkpoint\.json is damaged"):
        checkpoint.load(str(directory))
    (directory / "checkpoint.json").write_text(json.dumps({"format": 99, "files": []}))
    with pytest.raises(DataError, match="format 99"):
        checkpoint.load(str(directory))


def test_without_its_last_file_it_is_no_checkpoint(directory: Path) -> None:
    (directory / "checkpoint.json").unlink()
    with pytest.raises(DataError, match="has no complete checkpoint"):
        checkpoint.load(str(directory))
    with pytest.raises(DataError, match=r"checkpoint\.json is missing"):
        checkpoint_files.verify(str(directory))


def test_a_path_to_nothing_is_an_error_and_never_step_0(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        checkpoint.resolve(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="has no complete checkpoint"):
        checkpoint.resolve(str(tmp_path))


def test_saving_again_starts_by_making_it_incomplete(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", fail)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save_weights(
            str(directory), model=tiny_config(), state={}, tokenizer="", heads={}
        )
    assert not checkpoints.is_checkpoint(str(directory))


def unfinished(tmp_path: Path, steps: tuple[int, ...]) -> Path:
    for step in steps:
        write_checkpoint(
            tmp_path / "run" / "checkpoints" / checkpoints.step_name(step),
            tmp_path / "scratch",
            step=step,
            seed=step,
        )
    return tmp_path / "run"


def test_of_an_unfinished_run_the_newest_complete_one_counts(tmp_path: Path) -> None:
    run = unfinished(tmp_path, (50, 100, 1000))
    steps = run / "checkpoints"
    (steps / "step-00001000" / "checkpoint.json").unlink()  # killed while it was written
    assert checkpoint.resolve(str(run)) == str(steps / "step-00000100")
    assert checkpoint.load(str(run)).step == 100
    assert checkpoints.complete_steps(str(run)) == [
        str(steps / "step-00000050"),
        str(steps / "step-00000100"),
    ]


def test_a_damaged_newest_one_is_skipped_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = unfinished(tmp_path, (50, 100))
    flip_byte(run / "checkpoints" / "step-00000100" / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.load(str(run)).step == 50
    assert "SKIPPING A DAMAGED CHECKPOINT" in caplog.text
    assert "step-00000100/model.safetensors" in caplog.text
    flip_byte(run / "checkpoints" / "step-00000050" / "config.json")
    with pytest.raises(DataError, match="2 checkpoints, all of them damaged"):
        checkpoint.load(str(run))


def test_what_goes_while_it_is_looked_for_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = unfinished(tmp_path, (50, 100))
    old, new = (str(run / "checkpoints" / checkpoints.step_name(step)) for step in (50, 100))
    resolve, found = checkpoint.resolve, iter([old])

    def pruned_meanwhile(path: str) -> str:
        chosen = next(found, None) or resolve(path)
        if chosen == old:
            checkpoints.remove(old)
        return chosen

    monkeypatch.setattr(checkpoint, "resolve", pruned_meanwhile)
    with checkpoint.resolve_pinned(str(run)) as directory:
        assert directory == new
    monkeypatch.setattr(checkpoint, "resolve", lambda path: old)
    with (
        pytest.raises(DataError, match="or its training has removed it"),
        checkpoint.resolve_pinned(str(run)),
    ):
        pass


def finish(path: Path, summary: dict[str, object]) -> None:
    artifact.write_manifest(
        str(path),
        Manifest(
            stage="pretrain",
            version=1,
            fingerprint="f",
            parents={},
            config={},
            files=(),
            summary=summary,
        ),
    )


def test_a_finished_artifact_names_its_checkpoint(tmp_path: Path) -> None:
    run = unfinished(tmp_path, (50, 100))
    finish(run, {"checkpoint": "checkpoints/step-00000050"})
    assert checkpoint.resolve(str(run)).endswith("step-00000050")
    shutil.rmtree(run / "checkpoints" / "step-00000050")
    with pytest.raises(
        DataError, match="step-00000050 is incomplete or gone"
    ):  # not quietly another one
        checkpoint.resolve(str(run))
    finish(run, {})
    with pytest.raises(DataError, match="artifact of pretrain and has no checkpoint"):
        checkpoint.resolve(str(run))


def test_training_state_is_verified_where_it_is_wanted(directory: Path) -> None:
    write_tensors(
        str(directory / "training" / "optimizer.safetensors"), {"w/exp_avg": torch.randn(4)}
    )
    checkpoint.finalize(str(directory))
    checkpoint_files.verify(str(directory))
    flip_byte(directory / "training" / "optimizer.safetensors")
    assert (
        checkpoint.load(str(directory)).step == 5
    )  # whoever only wants the weights does not read it
    with pytest.raises(DataError, match=r"optimizer\.safetensors has sha256"):
        checkpoint_files.verify(str(directory))


def test_tensors_are_written_as_safetensors_reads_them(tmp_path: Path) -> None:
    base = torch.randn(6, 5)
    tensors = {
        "shared": base,
        "part": base[1:3],
        "turned": base.t(),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "none": torch.zeros(0, 4),
        "flags": torch.tensor([True, False, True]),
        "half": torch.randn(3).bfloat16(),
        "ids": torch.arange(5),
    }
    write_tensors(str(tmp_path / "file.safetensors"), tensors)
    found = safetensors.torch.load_file(str(tmp_path / "file.safetensors"))
    assert found.keys() == tensors.keys()
    assert all(
        found[name].dtype == tensor.dtype and found[name].equal(tensor)
        for name, tensor in tensors.items()
    )


class Payload:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.trace,)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt"])
def test_a_pickle_is_refused_unexecuted(tmp_path: Path, name: str) -> None:
    trace = tmp_path / "executed"
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / name
    file.write_bytes(pickle.dumps(Payload(trace)))
    for path in (file, file.parent):
        with pytest.raises(DataError, match=r"pickle.*convert it to safetensors"):
            checkpoint.load(str(path))
    with pytest.raises(DataError, match="pickle"):
        read_tensors(str(file))
    file.rename(tmp_path / "model" / "model.safetensors")  # a name can lie
    with pytest.raises(DataError, match="no safetensors file or is damaged"):
        read_tensors(str(tmp_path / "model" / "model.safetensors"))
    assert not trace.exists()


def test_a_hugging_face_directory_is_recognized(tmp_path: Path) -> None:
    write_tensors(str(tmp_path / "model.safetensors"), {"x": torch.zeros(1)})
    with pytest.raises(DataError, match="may be a Hugging Face directory"):
        checkpoint.resolve(str(tmp_path))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("module", ["masked_lm", "encoder", "pooler", "pair"])
def test_a_weight_that_is_not_finite_is_named(
    directory: Path, module: str, value: float, tmp_path: Path
) -> None:
    """Whoever loads the checkpoint: a verb would answer from it, and an average pass it on."""
    whole = checkpoint.load(str(directory))
    name = next(name for name in whole.state if name.startswith(module))
    state = {**whole.state, name: whole.state[name].index_fill(0, torch.tensor([1]), value)}
    bad = str(tmp_path / "bad")
    checkpoint.save_weights(
        bad, model=whole.model, state=state, tokenizer=whole.tokenizer, heads=whole.heads
    )
    checkpoint.finalize(bad)
    with pytest.raises(NotFiniteWeightsError, match=f"{name} has values that are not finite"):
        checkpoint.load(bad)
