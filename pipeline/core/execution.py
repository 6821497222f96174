"""How stages are run: workers, runner, processes, devices. None of it may change a result."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LEAST_GRACE = 25.0  # seconds
ANNOUNCED_GRACE = 180.0  # and what Slurm and Kubernetes are told where nobody says: enough for BERT-large on a shared disk


class Execution(BaseModel):
    """How stages are run. None of it may change a result, so none of it takes part in a fingerprint.

    The string literal below a field describes it; it is also the help of the command line's option.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: int = Field(default=1, ge=1)
    """Beam workers that share the work of a data stage."""

    runner: str = Field(default="local", min_length=1)
    """Who runs Beam pipelines: local, flink, or another Beam runner's name, such as SparkRunner (docs/engines.md)."""

    flink_master: str | None = None
    """HOST:PORT of a Flink cluster's REST interface; without it Flink is embedded."""

    worker_pool: str = "localhost:50000"
    """HOST:PORT where each task manager of a Flink cluster finds its worker pool, as it sees it."""

    beam_options: tuple[str, ...] = ()
    """Options passed to Beam as they are, such as --region=europe-west4."""

    driver_references: int = Field(default=50_000_000, ge=0)
    """Documents that the corpus stage compares in one process, at some 65 bytes of memory each; what is more goes through the shuffle of
    any runner but local (docs/engines.md)."""

    processes: int = Field(default=1, ge=1)
    """Training processes on this machine."""

    nodes: int = Field(default=1, ge=1)
    """Machines that train together."""

    node_rank: int = Field(default=0, ge=0)
    """The number of this machine among them, from 0."""

    master: str = "127.0.0.1:0"
    """HOST:PORT of the first machine; on one machine port 0 lets the system choose."""

    launcher: str = Field(default="local", min_length=1)
    """Who starts the training processes: local (this machine's alone), ssh, torchrun, slurm, srun (inside a Slurm job) or kubernetes (docs/operations.md)."""

    hostfile: str | None = None
    """A file of the machines that train together, a line each: HOST, or HOST slots=PROCESSES."""

    min_nodes: int | None = Field(default=None, ge=1)
    """The fewest machines to go on with when others are lost; without it, all are needed."""

    restarts: int | None = Field(default=None, ge=0)
    """How often processes or machines that were lost are started again, from the newest checkpoint; by default 3 with min_nodes or
    min_processes, else 0."""

    remote_python: str | None = None
    """The Python of the other machines; without it, this one's path."""

    ssh_options: tuple[str, ...] = ()
    """Options of ssh as its configuration has them, such as Port=2222 or User=train."""

    slurm_options: tuple[str, ...] = ()
    """Options of sbatch as they are, such as --partition=gpu or --time=12:00:00, with launcher slurm."""

    kubernetes_options: tuple[str, ...] = ()
    """What the pods need, with launcher kubernetes: image=…, claim=NAME:/PATH, gpus=8 and more (docs/operations.md)."""

    engine: Literal["auto", "torch", "deepspeed"] = "auto"
    """What runs training steps; auto takes DeepSpeed where a ZeRO stage is asked for or a device is too small, else torch."""

    zero: int | None = Field(default=None, ge=0, le=3)
    """DeepSpeed's ZeRO stage: 1 shares out the optimizer's state, 2 gradients, too, 3 weights, too; 0 nothing."""

    offload: Literal["none", "cpu"] = "none"
    """Where the optimizer's state lies and is updated: cpu keeps it in the machine's memory, off the GPUs, with ZeRO 1 to 3."""

    micro_batch: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    """Sequences that a process takes at once; without it, chosen by arithmetic; auto tries how many fit before it trains."""

    activation_checkpointing: bool = False
    """Keep the inputs of layers alone, and compute each layer again for its gradient: less memory, a third more work."""

    threads: int | None = Field(default=None, ge=1)
    """Threads of a training process inside an operation; without it, the cores divided by the processes."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What training computes on; auto takes a GPU where there is one."""

    cpus: int | None = Field(default=None, ge=1)
    """Cores that a node takes; without it, a data stage one a worker, a training on the CPU all of the machine's."""

    devices: tuple[str, ...] = ()
    """The GPUs to train on, by CUDA's numbers; without it, as many free ones as there are processes."""

    share: bool = False
    """Take no slots: run beside whatever else uses this machine's cores and GPUs."""

    retries: int = Field(default=0, ge=0)
    """How often a stage is tried again after a failure that may pass: not after bad input, bad config or a stop."""

    retry_seconds: float = Field(default=10.0, ge=0)
    """Seconds before the first retry; twice as long before each further one, at most ten minutes."""

    min_processes: int | None = Field(default=None, ge=1)
    """The fewest processes that a training may be tried again with, where one died twice or a GPU is gone; without it always as many."""

    timeout_minutes: float | None = Field(default=None, gt=0)
    """Minutes after which a stage's processes are stopped, with a checkpoint if it is a training; the stage has failed then."""

    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; without it, checkpoint_minutes counts."""

    checkpoint_minutes: float = Field(default=10.0, gt=0)
    """Minutes between checkpoints, where checkpoint_every is not said; the last step is always saved."""

    keep_checkpoints: int = Field(default=2, ge=1)
    """The newest checkpoints that are kept."""

    # Kubernetes and Prefect allow 30 seconds by default: give them more, too, where a checkpoint is large or the disk slow.
    grace_seconds: float | None = Field(default=None, ge=0)
    """Seconds that a stopped training may take to save its checkpoint, before it is killed; without it 25, or more as its steps and its
    checkpoints take."""

    hang_seconds: float = Field(default=60.0, ge=0)
    """Seconds that any training step may take; one that takes longer, and ten times the median, hangs: the run ends, and names the rank.
    0 waits for ever."""

    profile: int | None = Field(default=None, ge=1)
    """Training steps to trace, after the first five: where their time and memory go, as a page and a trace in the artifact's _logs/profile."""

    compile: bool | None = None
    """Whether torch.compile compiles the training step; without it, where it pays."""

    @property
    def least_grace(self) -> float:
        """Seconds that any stage has to end."""
        return LEAST_GRACE if self.grace_seconds is None else self.grace_seconds

    @property
    def announced_grace(self) -> float:
        """Seconds for a scheduler that wants to know beforehand how long ranks may take to end."""
        return ANNOUNCED_GRACE if self.grace_seconds is None else self.grace_seconds

    @field_validator("micro_batch", mode="before")
    @classmethod
    def _rows_or_auto(cls, value: object) -> object:
        """One sentence, where each part of the union would have one."""
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if number is None or number == "auto" or (isinstance(number, int) and number >= 1):
            return number
        raise ValueError("give a number of 1 or more, or auto")

    @model_validator(mode="after")
    def _fewer_are_no_more(self) -> Execution:
        if self.min_processes is not None and self.min_processes > self.processes:
            raise ValueError(
                f"min_processes ({self.min_processes}) is more than processes ({self.processes}); use that or fewer"
            )
        return self

    @model_validator(mode="after")
    def _one_device_a_process(self) -> Execution:
        if self.devices and len(self.devices) < self.processes:
            raise ValueError(
                f"devices ({', '.join(self.devices)}) are fewer than processes ({self.processes}); name one for each"
            )
        return self

    @model_validator(mode="after")
    def _rank_is_a_node(self) -> Execution:
        if self.node_rank >= self.nodes:
            raise ValueError(f"node_rank ({self.node_rank}) must be less than nodes ({self.nodes}); ranks count from 0")
        if self.min_nodes is not None and self.hostfile is None and self.min_nodes > self.nodes:
            raise ValueError(f"min_nodes ({self.min_nodes}) must be at most nodes ({self.nodes})")
        return self
