"""Writers for TensorBoard and Weights & Biases (`cloze.flows.tracking.trackers.Tracker`)."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoard:
    """Event files, by TensorBoard's own writer."""

    def __init__(self, directory: Path, name: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        for old in directory.glob("events.out.tfevents.*.cloze"):
            old.unlink()  # its points would stand beside the new ones
        self._writer: Any = EventFileWriter(str(directory), filename_suffix=".cloze")

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        values = [
            self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()
        ]
        event = self._event(step=step, wall_time=time, summary=self._summary(value=values))
        self._writer.add_event(event)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases below `directory`, offline unless `WANDB_MODE` says otherwise."""

    def __init__(self, directory: Path, name: str) -> None:
        import wandb

        for old in directory.glob("wandb/offline-run-*"):
            shutil.rmtree(old)
        directory.mkdir(parents=True, exist_ok=True)
        # Nothing but the metrics: no output, no figures of the machine, no code or git remote.
        without = ("x_disable_stats", "x_disable_meta", "disable_git", "disable_code", "silent")
        quiet = {**dict.fromkeys(without, True), "console": "off", "x_save_requirements": False}
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "cloze"),
            id=re.sub(r"[^\w-]", "-", name),  # an upload of the same training is the same run
            name=name,
            dir=str(directory),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",  # several trainings of a run go on at once
            settings=wandb.Settings(**quiet),
        )

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "_timestamp": time}, step=step)

    def flush(self) -> None:
        """Do nothing: each line is written as it comes."""

    def close(self) -> None:
        self._run.finish()
