"""What is planned is what was planned before, to the number: see `figures.py`."""

from __future__ import annotations

from cloze.labs.planning.training_plan import gpu
from cloze.model import hardware
from cloze.model.families.registry import presets
from cloze.model.train.plan import estimates
from tests.model.train.plan import figures


def test_every_planned_figure_is_the_recorded_one() -> None:
    """A change on purpose writes them again: `python -m tests.model.train.plan.figures`."""
    recorded = figures.FILE.read_text(encoding="utf-8").splitlines()
    found = list(figures.lines())
    changed = [(old, new) for old, new in zip(recorded, found, strict=False) if old != new]
    assert changed == []
    assert len(found) == len(recorded)


def test_the_table_of_gpus() -> None:
    names = ("memory", "bf16", "fp32", "kind")
    assert {
        name: [getattr(gpu, field) for field in names] for name, gpu in hardware.GPUS.items()
    } == {
        "v100": [32e9, None, 15.7e12, "cuda"],
        "t4": [16e9, None, 8.1e12, "cuda"],
        "a100-40": [40e9, 312e12, 156e12, "cuda"],
        "a100-80": [80e9, 312e12, 156e12, "cuda"],
        "a10g": [24e9, 70e12, 35e12, "cuda"],
        "l4": [24e9, 121e12, 60e12, "cuda"],
        "l40s": [48e9, 362e12, 183e12, "cuda"],
        "rtx-4090": [24e9, 165e12, 82.6e12, "cuda"],
        "h100": [80e9, 989e12, 494e12, "cuda"],
        "h200": [141e9, 989e12, 494e12, "cuda"],
        "b200": [180e9, 2250e12, 1100e12, "cuda"],
    }
    spellings = {
        "A100": "a100-80", "a100 40GB": "a100-40", "A100_80gb": "a100-80", "4090": "rtx-4090",
        "RTX4090": "rtx-4090", " a10 ": "a10g", "rtx 4090": "rtx-4090",
    }  # fmt: skip
    assert {text: gpu(text).name for text in spellings} == spellings


def test_ranks_without_zero_hold_everything() -> None:
    model = presets()["bert-base"].model_copy(update={"vocab_size": 30522})
    for ranks in (1, 2):
        plain = estimates.StepCost.of(model, 128, ranks=ranks).memory(8)
        assert plain == estimates.StepCost.of(model, 128, ranks=ranks, zero=0).memory(8)
        rows = estimates.StepCost.of(model, 128, ranks=ranks).fitting_rows(16e9)
        assert rows == estimates.StepCost.of(model, 128, ranks=ranks, zero=0).fitting_rows(16e9) > 8
