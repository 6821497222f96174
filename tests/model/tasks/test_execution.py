"""Fine-tuning heeds how it is to be executed: a micro-batch by trial, compiled layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch._dynamo.utils import counters

from cloze.core.errors import StoppedError, UsageError
from cloze.model.layers.encoder import EncoderLayer
from tests.model.datasets import lines
from tests.model.tasks.stages import Listener, finetune, settings

SHORT = {"epochs": 1, "baselines": False, "dropout": 0.0}


class Notes(Listener):
    """Keeps the notes of a training, too."""

    notes = ""

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        super().progress(done, total, unit, figures)
        self.notes += f"{figures.get('note', '')}\n"


def losses(out: Path) -> list[object]:
    return [line["loss"] for line in lines(out / "metrics.jsonl")]


def compiled_layers(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is compiled: traced, but without generated code, which takes a minute."""
    found: Counter[str] = Counter()
    compiles = nn.Module.compile

    def noted(module: nn.Module, *args: object, **options: object) -> None:
        found[type(module).__name__] += 1
        compiles(module, *args, backend="eager", **options)

    monkeypatch.setattr(nn.Module, "compile", noted)
    return found


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_layers_train_as_others(
    pretrained: str, sentiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(sentiment, limit_per_class=40, **SHORT)
    finetune(config, pretrained, tmp_path / "eager")
    found = compiled_layers(monkeypatch)
    counters.clear()
    finetune(config, pretrained, tmp_path / "compiled", execution={"compile": True})
    assert found == {EncoderLayer.__name__: 1}, "each of the model's layers"
    eager, compiled = (losses(tmp_path / name) for name in ("eager", "compiled"))
    assert counters["stats"]["unique_graphs"], "they ran as graphs"
    assert compiled == pytest.approx(eager, rel=5e-3)


def test_nothing_is_compiled_unasked(
    pretrained: str, sentiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compiled_layers(monkeypatch)
    finetune(settings(sentiment, **SHORT), pretrained, tmp_path / "run")
    assert not found


@pytest.mark.soak
@pytest.mark.usefixtures("deepspeed_here")
@pytest.mark.filterwarnings("ignore:`torch.distributed")  # of DeepSpeed
def test_a_resume_on_sharded_weights_runs_plain(
    pretrained: str, sentiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda *arguments, **options: None)
    config, out, listener = settings(sentiment, **SHORT), tmp_path / "run", Notes()
    compiled = {"checkpoint_every": 5, "compile": True}
    with pytest.raises(StoppedError):
        finetune(config, pretrained, out, report=Listener(5), execution=compiled)
    sharded = {"engine": "deepspeed", "zero": 3}
    finetune(config, pretrained, out, report=listener, execution=sharded)
    assert "not compiled: the checkpoint to continue was" in listener.notes


def test_what_cannot_be_compiled_is_refused(
    pretrained: str, sentiment: Path, tmp_path: Path
) -> None:
    config = settings(sentiment, frozen="last", **SHORT)
    with pytest.raises(UsageError, match=r"compile \(true\) is not for frozen features"):
        finetune(config, pretrained, tmp_path / "frozen", execution={"compile": True})
    every = {"checkpoint_every": 5}
    with pytest.raises(StoppedError):
        finetune(
            settings(sentiment, **SHORT), pretrained, tmp_path / "run", report=Listener(5),
            execution=every,
        )  # fmt: skip
    with pytest.raises(UsageError, match=r"compile \(true\) is not how the checkpoint .*false"):
        finetune(
            settings(sentiment, **SHORT), pretrained, tmp_path / "run",
            execution={**every, "compile": True},
        )  # fmt: skip
