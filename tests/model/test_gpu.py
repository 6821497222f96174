"""What must be equal on a GPU; the checks are those of `make gpu` (`benchmarks/gpu/checks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.place import Place
from benchmarks.gpu.tiny_trainings import Skipped

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("name", CHECKS)
def test_the_gpu_agrees(name: str, tmp_path: Path) -> None:
    try:
        CHECKS[name](Place(device="cuda", tiny=False, scratch=tmp_path))
    except Skipped as why:
        pytest.skip(str(why))
