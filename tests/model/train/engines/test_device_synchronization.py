"""In a step the host asks its device for nothing but what was sent on its way a step before: the
GPU never waits for the host.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cloze.model.train.device_scalars import AsyncScalar, to_device_async
from cloze.model.train.distributed import TIMEOUT, group_options
from cloze.model.train.engines.torch import TorchEngine
from cloze.model.train.optimizers import OPTIMIZERS
from tests.model.datasets import write_dataset
from tests.model.layers.test_device_questions import QUESTIONS
from tests.model.train.ranks import STILL, config, here
from tests.slices import few

EVALUATING_OR_SAVING = {"_finish_line", "_save", "means"}  # log lines, measurements and checkpoints


class Asked(TorchDispatchMode):
    """Counts what asks the device for a number in a step, by who does."""

    def __init__(self) -> None:
        super().__init__()
        self.who: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if func.overloadpacket.__name__ in QUESTIONS:
            ours = [
                frame
                for frame in traceback.extract_stack()
                if "/model/" in frame.filename and "/tests/" not in frame.filename
            ]
            names = {frame.name for frame in ours}
            if "_steps" in names and not names & EVALUATING_OR_SAVING:
                self.who[f"{Path(ours[-1].filename).name} {ours[-1].name}"] += 1
        return func(*args, **(kwargs or {}))


WAYS = [
    ("torch", "fp16", "adamw"),
    *(("torch", "bf16", name) for name in OPTIMIZERS),
    ("fsdp", "bf16", "adamw"),
]


@pytest.mark.parametrize(
    ("engine", "precision", "optimizer"),
    few(
        [pytest.param(*way, id="-".join(way)) for way in WAYS],
        "torch-fp16-adamw",
        "torch-bf16-lamb",
        "fsdp-bf16-adamw",
    ),
)
def test_steps_ask_for_norms_that_were_sent_and_nothing_else(
    engine: str, precision: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = TorchEngine.__init__

    def as_on_a_gpu(self: TorchEngine, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        self._waits = False

    dataset = write_dataset(tmp_path / "data")
    # a CPU's dropout asks the CPU
    settings = config(steps=6, precision=precision, optimizer=optimizer, log_every=3, model=STILL)
    usual = here(settings, dataset, tmp_path / "usual", micro_batch=4)
    monkeypatch.setattr(TorchEngine, "__init__", as_on_a_gpu)
    with Asked() as asked:
        found = here(settings, dataset, tmp_path / "found", micro_batch=4, engine=engine)
    said = (
        len(found.metrics) if precision == "fp16" else 0
    )  # a line of the log says the loss's scale
    assert dict(asked.who) == {"device_scalars.py value": 6 + said}
    assert [line["loss"] for line in found.metrics] == pytest.approx(
        [line["loss"] for line in usual.metrics], abs=1e-4
    )
    monkeypatch.setattr(TorchEngine, "__init__", create)
    with Asked() as asked:
        here(settings, dataset, tmp_path / "asking", micro_batch=4)
    assert asked.who["torch.py step"] == 6, "a question would be noticed"


def test_numbers_arrive_as_they_are() -> None:
    assert AsyncScalar(torch.tensor(2.5, dtype=torch.float64)).value == 2.5
    sent = to_device_async([1, 3], torch.float32, torch.device("cpu"))
    assert sent.tolist() == [1.0, 3.0]
    assert sent.dtype == torch.float32


def test_a_group_of_gpus_knows_its_device() -> None:
    """NCCL otherwise connects in the first collective, and guesses the device of a barrier."""
    device = torch.device("cuda", 1)
    assert group_options(device) == {"backend": "nccl", "timeout": TIMEOUT, "device_id": device}
    assert group_options(torch.device("cpu")) == {"backend": "gloo", "timeout": TIMEOUT}
