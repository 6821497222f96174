"""Options of how stages run: workers, processes, devices. No fingerprint contains them.

None may change a result, but for the rounding of sums over another number of ranks.

Each reader has its class: data stages `BeamOptions`, launchers `LaunchOptions`, trainings
`TrainingOptions`, the machine's slots `DeviceOptions`, retries and stops `AttemptOptions`.
`Execution` is all of them: the `run:` section of a config, and the options of a command. The string
literal below a field is its documentation and the help of its command-line option.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, create_model, field_validator, model_validator

from cloze.core.config import Values
from cloze.core.humanize import parse_duration
from cloze.core.options import known
from cloze.core.plugins import Table, installed

DEFAULT_GRACE_SECONDS = 25.0
# Slurm and Kubernetes get this by default: enough for BERT-large on a shared disk
SCHEDULER_GRACE_SECONDS = 180.0


_MEMORY = re.compile(r"(\d+)([MGT])(?:i?B)?")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")  # as Slurm writes it: D-HH:MM:SS


class Resources(Values):
    """What a job of the node gets on each of its hosts, from Slurm, Kubernetes or a host's slots.

    A stage of one process gets what the plan estimates, unless this says otherwise.
    """

    gpus: int | None = Field(default=None, ge=0)
    """GPUs. Default: one where the stage computes on a GPU and the cluster has any."""

    cpus: int | None = Field(default=None, ge=1)
    """CPU cores. Default: one per Beam worker or thread."""

    memory: str | None = None
    """Memory, such as 24G."""

    time: str | None = None
    """Time limit of the job, such as 90m, 12h or 1-12:00:00. Slurm ends it then and queues it
    again."""

    @field_validator("memory", mode="before")
    @classmethod
    def _check_memory(cls, value: object) -> object:
        match = _MEMORY.fullmatch(str(value).strip())
        if match is None and value is not None:
            raise ValueError(f"{value!r} must be a number and a unit, such as 24G or 800M")
        return match and f"{match[1]}{match[2]}"

    @field_validator("time", mode="before")
    @classmethod
    def _check_time(cls, value: object) -> object:
        seconds = parse_duration(str(value))
        if value is None or (seconds is None and _CLOCK.fullmatch(str(value))):
            return value
        if not seconds:
            raise ValueError(f"{value!r} must look like 90m, 12h or 1-12:00:00")
        return f"{seconds / 60:g}m"

    @property
    def minutes(self) -> int | None:
        """Return the time limit in minutes, rounded up."""
        if self.time is None:
            return None
        if match := _CLOCK.fullmatch(self.time):
            days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
            return 1440 * days + 60 * hours + minutes + (seconds > 0)
        return math.ceil((parse_duration(self.time) or 60.0) / 60)


class BeamOptions(Values):
    """How data stages run their Beam jobs."""

    workers: int = Field(default=1, ge=1)
    """Number of Beam workers."""

    runner: str = Field(default="local", min_length=1)
    """Beam runner: local, flink, or the name of another one, such as SparkRunner
    (docs/how-to/beam-runners.md)."""

    flink_master: str | None = None
    """HOST:PORT of the Flink cluster's REST endpoint. Default: an embedded Flink."""

    worker_pool: str = "localhost:50000"
    """HOST:PORT of the Beam worker pool, as a Flink task manager sees it."""

    beam_options: tuple[str, ...] = ()
    """Option passed to Beam unchanged, such as --region=europe-west4. Repeatable."""

    dedup_in_memory_documents: int = Field(default=50_000_000, ge=0)
    """Number of documents up to which one process compares all, at about 65 bytes each. More are
    compared in partitions of connected documents."""


class LaunchOptions(Values):
    """Where the processes of a stage start, and what happens when one is lost."""

    processes: int = Field(default=1, ge=1)
    """Training processes per host; one per GPU."""

    nodes: int = Field(default=1, ge=1)
    """Number of hosts that train together."""

    launcher: str = Field(default="local", min_length=1)
    """Launcher that starts the stage's processes (docs/how-to/many-hosts.md)."""

    resources: Resources = Resources()
    """GPUs, cores, memory and time of the job or pod: {gpus: 1, cpus: 8, memory: 24G, time: 2h}."""

    hostfile: str | None = None
    """File of the hosts to train on, one per line: HOST or HOST slots=PROCESSES."""

    min_nodes: int | None = Field(default=None, ge=1)
    """Minimum number of hosts to continue with after a loss. Default: all of them."""

    min_processes: int | None = Field(default=None, ge=1)
    """Minimum number of processes to restart with, if one died twice or a GPU is lost. Default:
    --processes."""

    restarts: int | None = Field(default=None, ge=0)
    """Automatic restarts from the newest checkpoint after a process or host is lost. Default: 3
    with min_nodes or min_processes, else 0."""

    ssh_options: tuple[str, ...] = ()
    """ssh option in ssh_config syntax, such as Port=2222. Repeatable."""

    slurm_options: tuple[str, ...] = ()
    """sbatch option, such as --partition=gpu, for --launcher slurm. Repeatable."""

    hang_seconds: float = Field(default=60.0, ge=0)
    """Abort if a step takes longer than this and ten times the median, and name the rank. 0:
    never."""


# Ways to faster steps on a GPU; `cloze.model.train.spec.levers` says what a row is.
GPU_LEVERS: Table[Any] = Table("gpu_levers", "GPU lever", {})


class TrainingOptions(Values):
    """How a training computes its steps and keeps its checkpoints."""

    engine: Literal["auto", "torch", "fsdp", "deepspeed"] = "auto"
    """Training backend. auto: DeepSpeed if --zero is set, fsdp if the model does not fit on a
    device, else torch."""

    zero: int | None = Field(default=None, ge=0, le=3)
    """ZeRO stage of DeepSpeed, or of fsdp (2 or 3): 1 partitions optimizer states, 2 also
    gradients, 3 also weights, 0 nothing."""

    offload: Literal["none", "cpu"] = "none"
    """Keep and update the optimizer states in CPU memory, with fsdp also weights and gradients;
    needs ZeRO 1 to 3 or fsdp."""

    micro_batch: int | None = Field(default=None, ge=1)
    """Sequences per process and forward pass. Default: computed from the memory size."""

    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more compute."""

    compile: bool | None = None
    """Compile the training step, in fine-tuning the encoder's layers. Default: a pretraining on a
    GPU, if it is expected to pay off."""

    gpu_levers: tuple[Annotated[str, known(GPU_LEVERS, "there is no such GPU lever")], ...] = ()
    """Ways to faster steps on a GPU that no GPU has measured yet (docs/how-to/gpu.md). Repeatable.
    Default: none."""

    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints. Default: ten minutes. The last step is always saved."""

    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of most recent checkpoints to keep during a training."""

    profile_steps: int | None = Field(default=None, ge=1)
    """Number of steps to trace, after the first five; writes a table and a trace to
    OUT/_logs/profile."""


class DeviceOptions(Values):
    """Cores and GPUs that a stage takes and uses."""

    threads: int | None = Field(default=None, ge=1)
    """CPU threads per process. Default: the cores divided by --processes."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on. auto: a GPU if there is one."""

    gpu_ids: tuple[str, ...] = ()
    """CUDA id of a GPU to use. Repeatable. Default: as many free GPUs as --processes."""

    oversubscribe: bool = False
    """Take no slots: run next to other work on this host's cores and GPUs."""


class AttemptOptions(Values):
    """How long an attempt may take, and how often a stage is tried."""

    retries: int = Field(default=0, ge=0)
    """Number of retries after a failure that may be temporary; bad input, bad config, stops and
    time limits are not retried."""

    retry_seconds: float = Field(default=10.0, ge=0)
    """Seconds before the first retry; doubled before each further one, up to ten minutes."""

    timeout_minutes: float | None = Field(default=None, gt=0)
    """Stop the stage after this time, restarts included, and report it as failed; a training saves
    a checkpoint."""

    # Prefect allows 30 seconds by default: raise its limit, too, for large checkpoints or slow
    # disks. Slurm and Kubernetes are told this one.
    grace_seconds: float | None = Field(default=None, ge=0)
    """Time to save a checkpoint after a stop request, before processes are killed. Default: 25,
    more if steps or checkpoints take longer."""

    @property
    def min_grace_seconds(self) -> float:
        """Return the minimum grace period of any stage, in seconds."""
        return DEFAULT_GRACE_SECONDS if self.grace_seconds is None else self.grace_seconds

    @property
    def scheduler_grace_seconds(self) -> float:
        """Return the grace period for schedulers that must know it in advance, in seconds."""
        return SCHEDULER_GRACE_SECONDS if self.grace_seconds is None else self.grace_seconds


# field -> the only launcher that reads it; `with_launchers` adds those of plug-ins
LAUNCHER_FIELDS = {
    "hostfile": "ssh",
    "min_nodes": "ssh",
    "ssh_options": "ssh",
    "slurm_options": "slurm",
}
M = TypeVar("M", bound=BaseModel)


def with_launchers(config: type[M]) -> type[M]:
    """Add the field `NAME_options` for each launcher of a plug-in whose row says what they are."""
    rows = (plugin.plugin.rows.get("launchers", {}) for plugin in installed())
    helps = {name: row.help for named in rows for name, row in named.items() if row.help}
    LAUNCHER_FIELDS.update((f"{name}_options", name) for name in helps)
    fields: Any = {
        f"{name}_options": (tuple[str, ...], Field(default=(), description=text))
        for name, text in helps.items()
    }
    settings: Any = {"__base__": config, "__module__": config.__module__, "__doc__": config.__doc__}
    extended: type[M] = create_model(config.__name__, **settings, **fields)
    return extended


@with_launchers
class Execution(AttemptOptions, DeviceOptions, TrainingOptions, LaunchOptions, BeamOptions):
    """All options of how a stage runs."""

    @model_validator(mode="after")
    def _check_counts(self) -> Execution:
        if self.min_processes is not None and self.min_processes > self.processes:
            raise ValueError(
                f"min_processes ({self.min_processes}) must be at most processes ({self.processes})"
            )
        if self.gpu_ids and len(self.gpu_ids) < self.processes:
            raise ValueError(
                f"gpu_ids ({', '.join(self.gpu_ids)}) are fewer than processes ({self.processes}); "
                f"give one per process"
            )
        if self.min_nodes is not None and self.hostfile is None and self.min_nodes > self.nodes:
            raise ValueError(f"min_nodes ({self.min_nodes}) must be at most nodes ({self.nodes})")
        return self


def without_other_launchers(run: Mapping[str, Any], launcher: str | None) -> dict[str, Any]:
    """Return settings without those that another launcher reads; None: the launcher stays."""
    return {
        name: value
        for name, value in run.items()
        if launcher is None or LAUNCHER_FIELDS.get(name, launcher) == launcher
    }
