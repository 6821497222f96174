"""What a node of a run takes of this machine; see `flows.launchers.slots`."""

from __future__ import annotations

from flows.graph import stages
from flows.launchers.slots import Demand, Machine
from pipeline.core.execution import Execution


def demand(stage_name: str, execution: Execution, there: Machine) -> Demand:
    """What a node of that stage takes of the machine: never more than there is.

    A training takes a GPU and a core for each of its processes, or where it computes on the CPU, all cores unless `cpus` says how many; a
    data stage a core for each worker. What another launcher starts takes nothing here: its agents take their own hosts' GPUs.
    """
    stage = stages.stage(stage_name)
    if execution.share or (stage.parallel and execution.launcher != "local"):
        return Demand()
    processes = execution.processes if stage.parallel else 1
    if stage.worker == "model" and there.gpus and execution.device != "cpu":
        gpus = len(execution.devices) or min(processes, len(there.gpus))
        return Demand(gpus=gpus, cpus=min(execution.cpus or processes, there.cpus), devices=execution.devices)
    usual = there.cpus if stage.worker == "model" else execution.workers if stage.worker else 1
    return Demand(cpus=min(execution.cpus or usual, there.cpus))
