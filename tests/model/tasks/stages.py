"""Fine-tuning and evaluation as stages in this process, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Reporter
from cloze.model.tasks.evaluate.stage import STAGE as EVALUATE
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.finetune.stage import STAGE as FINETUNE
from cloze.model.tasks.finetune.stage import FinetuneConfig

DEFAULTS = {
    "epochs": 5,
    "global_batch": 16,
    "learning_rate": 5e-3,
    "max_length": 32,
    "precision": "fp32",
    "seed": 3,
}
ALONE = {"device": "cpu", "threads": 1}


class Listener(Reporter):
    """Keeps what a stage reports; with `stop_at`, asks it to stop when that many steps are done."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.lines: list[dict[str, Any]] = []
        self.done: list[tuple[float, float | None]] = []

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        self.done.append((done, total))

    def metrics(self, values: Mapping[str, Any]) -> None:
        self.lines.append(dict(values))
        if values["step"] == self.stop_at:
            self.stop_at = None
            os.kill(os.getpid(), signal.SIGTERM)


def settings(data: Path, **values: Any) -> FinetuneConfig:
    return FinetuneConfig.model_validate({"data": str(data), **DEFAULTS, **values})


def finetune(
    config: FinetuneConfig,
    pretrained: str | None,
    out: Path | str,
    *,
    report: Reporter | None = None,
    execution: Mapping[str, Any] | None = None,
    **inputs: str,
) -> BuildResult:
    given = {"checkpoint": pretrained, **inputs} if pretrained else inputs
    how = Execution.model_validate({**ALONE, **(execution or {})})
    return execute(FINETUNE, config, given, str(out), execution=how, report=report or Reporter())


def evaluate(checkpoint: Path | str, out: Path, **values: Any) -> BuildResult:
    config = EvaluateConfig(precision="fp32", **values)
    return execute(
        EVALUATE,
        config,
        {"checkpoint": str(checkpoint)},
        str(out),
        execution=Execution.model_validate(ALONE),
    )
