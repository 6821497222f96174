"""Distances, angles and similarities of layers are those of their formulas."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.flows.cli import main
from cloze.model import checkpoint
from cloze.model.analyze.layers import changes, cka
from cloze.model.families.models import load_backbone
from cloze.pipeline import tokenizer
from tests.tiny_models import write_checkpoint

TEXTS = ["the cat sat on the mat.", "walking dogs walked in paris", "a", "the dog ran in the park"]


def plain_cka(x: np.ndarray, y: np.ndarray) -> float:
    """By Gram matrices: the alignment of K = X X' and L = Y Y', centered by H."""
    center = np.eye(len(x)) - 1 / len(x)
    k, other = (center @ z @ z.T @ center for z in (x, y))
    return float((k * other).sum() / np.sqrt((k * k).sum() * (other * other).sum()))


def test_cka_is_that_of_gram_matrices() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3, 6)) + 5, rng.normal(size=(50, 2, 4))
    found = cka(torch.from_numpy(x).float(), torch.from_numpy(y).float())
    expected = [[plain_cka(x[:, a], y[:, b]) for b in range(2)] for a in range(3)]
    assert found.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]


def test_cka_does_not_see_rotation_shift_and_scale() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    rotation, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    states = torch.from_numpy(np.stack([x, 3 * x @ rotation + 1, rng.normal(size=(200, 6))], 1))
    found = cka(states.float(), states.float())
    assert found[0, 1] == pytest.approx(1, abs=1e-5)
    assert found.diagonal() == pytest.approx(1, abs=1e-5)
    assert found[0, 2] < 0.2


def test_distances_and_angles() -> None:
    states = torch.tensor([[[1.0, 0], [0, 1], [0, 3]], [[2.0, 0], [2, 2], [2, 2]]])
    distances, angles = changes(states)
    assert distances.tolist() == pytest.approx([(2**0.5 + 2) / 2, 1])
    assert angles.tolist() == pytest.approx([(90 + 45) / 2, 0], abs=1e-4)


def test_the_command_compares_layers_and_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_checkpoint(tmp_path / "one", tmp_path / "scratch")
    other = write_checkpoint(
        tmp_path / "other", tmp_path / "scratch", seed=1, num_hidden_layers=3, hidden_size=24
    )
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arguments = ["layers", path, str(tmp_path / "texts.txt"), "--other", other, "--device", "cpu"]
    assert main([*arguments, "--svg", str(tmp_path / "layers.svg"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    loaded = checkpoint.load(path)
    encoder = load_backbone(loaded.model, loaded.state).encoder
    pieces = tokenizer.load(loaded.tokenizer)
    first, last = [], []
    with torch.no_grad():
        for ids in pieces.encode_batch(TEXTS):
            row = torch.tensor([[pieces.special.cls, *ids, pieces.special.sep]])
            embedded = encoder.embeddings(row, 0 * row, None)[0]  # type: ignore[operator, union-attr]
            first.append(embedded)
            last.append(encoder(row, None, 0 * row)[0])
    x, y = torch.cat(first), torch.cat(last)
    assert found["cka"][0][2] == pytest.approx(plain_cka(x.numpy(), y.numpy()), abs=1e-4)
    assert np.shape(found["cka_other"]) == (3, 4)
    assert [row["layer"] for row in found["layers"]] == [1, 2]
    assert "CKA with the other" in (tmp_path / "layers.svg").read_text()
    assert main(arguments[:3]) == 0
    assert capsys.readouterr().out.splitlines()[-2].startswith("1 ")


def test_the_same_checkpoint_is_equal_to_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_checkpoint(tmp_path / "one", tmp_path / "scratch")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arguments = ["layers", path, str(tmp_path / "texts.txt"), "--tokens", "9", "--json"]
    assert main([*arguments, "--other", path]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cka"] == found["cka_other"]
    assert found["metrics"]["cka_other"] == pytest.approx(1, abs=1e-5)


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_checkpoint(tmp_path / "one", tmp_path / "scratch")
    (tmp_path / "empty.txt").write_text("\n")
    assert main(["layers", path, str(tmp_path / "empty.txt")]) == 3
    assert "is empty" in capsys.readouterr().err
    (tmp_path / "texts.txt").write_text("the cat\n")
    other = write_checkpoint(tmp_path / "other", tmp_path / "scratch")
    words = Path(other) / "tokenizer" / "tokenizer.json"
    words.write_text(words.read_text().replace('"mat"', '"rug"'))
    checkpoint.finalize(other)
    assert main(["layers", path, str(tmp_path / "texts.txt"), "--other", other]) == 2
    assert "another tokenizer" in capsys.readouterr().err
