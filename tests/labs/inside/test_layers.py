"""Distances, angles and similarities of layers are those of their formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.flows.cli import main
from cloze.labs.inside.probe import changes, cka
from cloze.labs.inside.stages import LAYERS, LayersConfig
from cloze.model import checkpoint
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


def compared(path: str, texts: Path, tokens: int = 4096, **inputs: str) -> dict[str, Any]:
    build = BuildContext(
        path=str(texts.parent),
        inputs={"checkpoint": path, **inputs},
        execution=Execution(device="cpu"),
        fingerprint="",
    )
    with build.cleanup:
        return LAYERS.run(LayersConfig(texts=str(texts), tokens=tokens), build).summary


def test_layers_and_checkpoints_are_compared_token_by_token(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "one", tmp_path / "scratch")
    other = write_checkpoint(
        tmp_path / "other", tmp_path / "scratch", seed=1, num_hidden_layers=3, hidden_size=24
    )
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    found = compared(path, texts, other=other)
    loaded = checkpoint.load(path)
    encoder: Any = load_backbone(loaded.model, loaded.state).encoder
    pieces = tokenizer.load(loaded.tokenizer)
    first, last = [], []
    with torch.no_grad():
        for ids in pieces.encode_batch(TEXTS):
            row = torch.tensor([[pieces.special.cls, *ids, pieces.special.sep]])
            first.append(encoder.embeddings(row, 0 * row, None)[0])
            last.append(encoder(row, None, 0 * row)[0])
    x, y = torch.cat(first).numpy(), torch.cat(last).numpy()
    assert found["cka"][0][2] == pytest.approx(plain_cka(x, y), abs=1e-4)
    assert np.shape(found["cka_other"]) == (3, 4)
    assert [row["layer"] for row in found["layers"]] == [1, 2]
    assert found["layers"][1]["cka_last"] == pytest.approx(1, abs=1e-5)
    same = compared(path, texts, 9, other=path)
    assert same["cka"] == same["cka_other"]
    assert same["metrics"]["cka_other"] == pytest.approx(1, abs=1e-5)
    assert same["cka"][0][2] == pytest.approx(plain_cka(x[:9], y[:9]), abs=1e-4)


@pytest.mark.usefixtures("warm")
def test_the_command_prints_a_row_per_layer_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_checkpoint(tmp_path / "one", tmp_path / "scratch")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arguments = ["layers", path, str(tmp_path / "texts.txt"), "--svg", str(tmp_path / "layers.svg")]
    assert main([*arguments, "--device", "cpu"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[-3:]] == ["layer", "1", "2"]
    assert "CKA of the layers" in (tmp_path / "layers.svg").read_text()


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "one", tmp_path / "scratch")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n")
    with pytest.raises(DataError, match="is empty"):
        compared(path, texts)
    texts.write_text("the cat\n")
    other = write_checkpoint(tmp_path / "other", tmp_path / "scratch")
    words = Path(other) / "tokenizer" / "tokenizer.json"
    words.write_text(words.read_text().replace('"mat"', '"rug"'))
    checkpoint.finalize(other)
    with pytest.raises(UsageError, match="another tokenizer"):
        compared(path, texts, other=other)
    decoder = write_checkpoint(tmp_path / "bart", tmp_path / "scratch", family="bart")
    with pytest.raises(UsageError, match="has a decoder"):
        compared(decoder, texts)
