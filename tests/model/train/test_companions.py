"""A companion of a plug-in: its module is trained and saved beside the model, and is no part of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.families.models import load_model, new_model
from cloze.model.train.evaluate.companion import Companion
from cloze.model.train.spec.companions import COMPANIONS, CompanionKind
from tests.model.datasets import write_dataset
from tests.model.train.ranks import config, here


class Beside(Companion):
    """A matrix that no objective uses."""

    uncompiled = "a matrix"

    def extend(self, network: nn.Module) -> None:
        network.add_module("beside_matrix", nn.Linear(3, 2))

    def save(self, build: BuildContext, network: nn.Module) -> dict[str, Any]:
        weight = network.get_submodule("beside_matrix").weight
        storage.write_bytes(build.file("matrix.json"), json.dumps(weight.tolist()).encode())
        return {"matrix": list(weight.shape)}


def load(*given: Any) -> Beside:
    assert len(given) == 6
    return Beside()


@pytest.fixture
def companion(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = CompanionKind(load=f"{__name__}:load")
    monkeypatch.setitem(COMPANIONS, "matrix", kind)


def test_what_stands_beside_a_model_is_saved_and_no_part_of_it(
    companion: None, tmp_path: Path
) -> None:
    dataset = write_dataset(tmp_path / "rows", pair_task=None)
    found = here(config(steps=2), dataset, tmp_path / "run")
    assert found.outcome.summary["matrix"] == [2, 3]
    assert len(json.loads((tmp_path / "run" / "matrix.json").read_text())) == 2
    weights = checkpoint.weights(str(found.checkpoint))
    assert torch.Size([2, 3]) == weights["beside_matrix.weight"].shape
    loaded = checkpoint.load(str(tmp_path / "run"))
    load_model(loaded.model, loaded.state)
    parameters = sum(weight.numel() for weight in new_model(loaded.model).parameters())
    assert found.outcome.summary["parameters"] == parameters


def test_what_cannot_be_compiled_is_refused_by_its_name(companion: None, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "rows", pair_task=None)
    with pytest.raises(UsageError, match=r"compile \(true\) is not for a matrix"):
        here(config(steps=2), dataset, tmp_path / "run", compile=True)
