"""How stages are run: workers, runner, processes, devices. None of it may change a result."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from pipeline.core.lock import LOCK as LOCK


class Execution(BaseModel):
    """How stages are run. None of it may change a result, so none of it takes part in a fingerprint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: int = 1  # Beam worker processes
    runner: str = "local"  # local | flink | another Beam runner's name
    flink_master: str | None = None  # HOST:PORT of a Flink cluster; None: an embedded one
    worker_pool: str = "localhost:50000"  # where the cluster's task managers find a worker pool, as each of them sees it
    beam_options: tuple[str, ...] = ()  # passed to Beam as they are, such as --region=europe-west4
    processes: int = 1  # training processes on this machine
    nodes: int = 1  # machines that train together
    node_rank: int = 0
    master: str = "127.0.0.1:0"  # HOST:PORT of the first machine; port 0 lets the system choose on one machine
    engine: str = "auto"  # auto | torch | deepspeed: what runs training steps
    zero: int | None = None  # DeepSpeed ZeRO stage, 0 to 3; None: none is asked for
    micro_batch: int | None = None  # sequences a process takes at once; None: chosen from the global batch
    threads: int | None = None  # intra-op threads of a process; None: the cores divided by the processes
    device: str = "auto"  # auto | cpu | cuda
    checkpoint_every: int = 0  # steps between checkpoints; 0: by the clock, see checkpoint_minutes
    checkpoint_minutes: float = 10.0  # minutes between checkpoints where checkpoint_every is 0
    keep_checkpoints: int = 2
    # Seconds to save a checkpoint in after SIGTERM, before SIGKILL. Kubernetes and Prefect allow 30 by default: give them more, too,
    # where a checkpoint is large (BERT-large with Adam's state: four gigabytes) or the disk slow.
    grace_seconds: float = Field(default=25.0, ge=0)
    compile: bool | None = None  # torch.compile the training step; None: where it pays
