"""How long this training would take to stop with a checkpoint: told to whoever would kill it, see `Reporter.grace`."""

from __future__ import annotations

from torch import nn

from model.train.distributed import World
from pipeline.core.reporting import Reporter

STATE_BYTES = 12  # a parameter with Adam's two moments, in fp32
DISK_SPEED = 4e7  # bytes a second, with their hash: of a slow disk, or of a machine with ten times more to do than cores
BEGIN_SECONDS = 10.0  # to end an evaluation, and the process
STEPS = 3.0  # that may run before a stop takes effect
SAVES = 2.0  # times what a save took: the next one may be slower


class Grace:
    """Told once at the start, and again where steps or saves turn out to take longer."""

    def __init__(self, report: Reporter, model: nn.Module, world: World) -> None:
        size = sum(int(getattr(value, "ds_numel", value.numel())) for value in model.parameters())
        self._report = report if world.first else None
        self._save = STATE_BYTES * size / DISK_SPEED
        self._step = self._told = 0.0
        self._tell()

    def saved(self, seconds: float) -> None:
        """A checkpoint took so long."""
        self._save = max(self._save, SAVES * seconds)
        self._tell()

    def stepped(self, seconds: float) -> None:
        """Steps take so long."""
        self._step = seconds
        self._tell()

    @property
    def seconds(self) -> float:
        return BEGIN_SECONDS + self._save + STEPS * self._step

    def _tell(self) -> None:
        if self._report is not None and self.seconds > 1.1 * self._told:
            self._told = round(self.seconds, 1)
            self._report.grace(self._told)
