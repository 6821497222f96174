"""The nightly flow: fine-tune and evaluate the newest checkpoint of a run, finished or not.

Everything is cached by fingerprint: a night on which no checkpoint has come does no work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow

from flows.graph import plan, stages
from flows.prefect.full_run import in_task
from flows.session import RunParameters, Session
from pipeline.core import fingerprints
from pipeline.core.checkpoints import COMPLETE, held
from pipeline.core.config import StageConfig
from pipeline.core.errors import DataError, UsageError


def newest_checkpoint(run: Path) -> Path:
    """The complete checkpoint that was written last in any pretraining of the run.

    Raises:
        DataError: there is none yet.
    """
    marks = sorted(run.glob(f"pretrain-*/checkpoints/*/{COMPLETE}"), key=lambda mark: (mark.stat().st_mtime_ns, str(mark)))
    if not marks:
        raise DataError(f"{run} has no checkpoint yet; start a pretraining with `cloze run`")
    return marks[-1].parent


@flow(name="nightly-evaluation", flow_run_name="{config}", persist_result=False)
def nightly_evaluation(config: str = "demo", overrides: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Fine-tune and evaluate the newest checkpoint of a run, and record its metrics.

    Args:
        config: a preset's name, or the path of a YAML file on the worker's machine.
        overrides: config values by dotted key, such as {"finetune.epochs": 1}.
    """
    session = NightlySession(config, overrides or {})
    with held(session.checkpoint), session:
        for step in session.steps:
            in_task(step, session.attempt)
    return [plan.result_json(result) for result in session.results.values()]


class NightlySession(Session):
    """A session whose plan is fine-tuning and evaluation of one checkpoint."""

    def __init__(self, config: str, overrides: dict[str, Any]) -> None:
        super().__init__(RunParameters(config=config, overrides=overrides))
        lacking = [name for name in ("finetune", "evaluate") if name not in self.config.nodes]
        if lacking:
            raise UsageError(
                f"the config of run {self.config.name!r} has no section {lacking[0]}, which the night runs; add {lacking[0]}: {{…}}"
            )
        self.checkpoint = str(newest_checkpoint(self.directory))
        inputs = {"checkpoint": self.checkpoint}
        corpus = next((step.artifact for step in self.steps if step.name == "corpus"), None)
        finetune = self._step("finetune", self.config.nodes["finetune"].config, inputs, corpus, {})
        evaluate = self._step(
            "evaluate",
            self.config.nodes["evaluate"].config,
            {"checkpoint": finetune.artifact},
            corpus,
            {"checkpoint": finetune.fingerprint},
        )
        self.steps = [finetune, evaluate]

    def _step(
        self, name: str, config: StageConfig, inputs: dict[str, str], corpus: str | None, known: dict[str, str]
    ) -> plan.Step:
        stage = stages.stage(name)
        if corpus and "corpus" in stage.inputs:
            inputs = {**inputs, "corpus": corpus}
        parents = {key: known.get(key) or fingerprints.input_fingerprint(path) for key, path in inputs.items()}
        fingerprint = stage.fingerprint(config, parents)
        place = str(self.directory / "nightly" / f"{name}-{fingerprint[:12]}")
        return plan.Step(
            node=self.config.nodes[name], inputs=inputs, after=(), fingerprint=fingerprint, artifact=place,
            cached=False, why="newest checkpoint", last_seconds=None,
        )  # fmt: skip


if __name__ == "__main__":
    nightly_evaluation()
