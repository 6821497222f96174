"""What the stage pretrain takes: operations of its steps, checkpoints, and the memory of weights and activations. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.families.config import ModelConfig
from model.families.presets import model_config
from model.train import arithmetic, memory
from model.train.config import PretrainConfig
from model.train.memory import Computing
from model.train.scale import hardware, network
from model.train.scale.step import speed, step
from pipeline.core.cost import Computer, Cost, Costs, Facts, Pace, without_start
from pipeline.core.execution import Execution
from pipeline.core.roles import role_of

START = {"cpu": 12.0, "cuda": 25.0}  # torch, the process group, the model, the last checkpoint and its hash
FULL = 0.95  # of a row, where the dataset is still to be made
USUAL_VOCABULARY = 30_000


def device_of(execution: Execution, computer: Computer) -> str:
    """What a training will compute on."""
    if execution.device == "auto":
        return "cuda" if computer.gpus else "cpu"
    return execution.device


def read(inputs: Mapping[str, Facts]) -> Facts:
    """What is known of the data: of several datasets what the first says, with all their rows and tokens."""
    datasets = [facts for key, facts in sorted(inputs.items()) if role_of(key) == "dataset"]
    rows = sum(int(facts.get("rows") or 0) for facts in datasets)
    mean = sum(int(facts.get("rows") or 0) * float(facts.get("mean_length") or 0.0) for facts in datasets)
    return datasets[0] if len(datasets) == 1 else {**datasets[0], "rows": rows, "mean_length": mean / rows if rows else None}


def sized(model: ModelConfig | None, inputs: Mapping[str, Facts], vocabulary: int) -> ModelConfig | None:
    """The model that is trained: the config's, or that of the checkpoint it begins with; None: nobody knows before it is opened."""
    if model is None:
        source = next((inputs[role] for role in ("continue", "checkpoint") if role in inputs), None)
        said = "bert-base" if source is None else model_of(source)
        if said is None:
            return None
        model = model_config(said)
    return model if model.vocab_size else model.model_copy(update={"vocab_size": vocabulary})


def model_of(facts: Facts) -> Any:
    """What a training's facts say of its model: values, a name, or None."""
    return facts.get("model") or (facts.get("config") or {}).get("model")


def training_memory(
    model: ModelConfig,
    length: int,
    rows: int,
    execution: Execution,
    device: str,
    computer: Computer,
    precision: str = "auto",
    reduce: str = "fp32",
    averaging: bool = False,
) -> tuple[int, int]:
    """(bytes of the machine's memory, bytes of each GPU) that training takes with so many rows a step."""
    there, ranks = hardware.of(device, computer), execution.processes * execution.nodes
    bf16 = there.computes_bf16 if precision == "auto" else precision != "fp32"
    how = Computing(
        device=there.kind,
        bf16=bf16,
        checkpointing=execution.activation_checkpointing,
        reduce16=reduce != "fp32",
        offload=execution.offload == "cpu",
        averaging=averaging,
    )
    zero, most = execution.zero or 0, -(-rows // ranks)
    asked = execution.micro_batch if isinstance(execution.micro_batch, int) else None
    fitting = (
        max(1, memory.CPU_TOKENS // length)
        if there.kind == "cpu"
        else max(1, memory.fitting_rows(there.memory, model, length, ranks=ranks, zero=zero, how=how))
    )
    micro = min(most, asked or fitting)
    found = memory.training_memory(model, length, micro, ranks=ranks, zero=zero, accumulating=micro < most, how=how)
    if there.kind == "cpu":
        return int(execution.processes * found.total), 0
    return int(execution.processes * found.host), int(found.total)


def training_speed(
    model: ModelConfig,
    mean: float,
    rows: int,
    execution: Execution,
    device: str,
    computer: Computer,
    reduce: str = "fp32",
) -> float:
    """Operations a second of each GPU, or of the machine's CPU, with what its ranks wait for each other."""
    there = hardware.of(device, computer)
    if there.kind == "cpu":
        return speed(there)
    ranks = execution.processes * execution.nodes
    links = network.links(there, ranks, per_node=execution.processes)
    tokens = rows / ranks * mean
    gradient = network.NUMBER if reduce == "fp32" else network.NUMBER // 2
    took = step(model, there, links, tokens=tokens, mean=mean, accumulation=1, zero=execution.zero or 0, gradient=gradient)
    return tokens * arithmetic.step_work(model, mean, there.kind) / took.seconds


def ahead(
    config: PretrainConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """From the model's size, the steps, and how full the dataset's rows are."""
    del before
    data, device = read(inputs), device_of(execution, computer)
    length = int(data.get("length") or 128)
    mean = float(data.get("mean_length") or FULL * length)
    model = sized(config.model, inputs, int(data.get("vocab_size") or USUAL_VOCABULARY))
    weights = int(_source(inputs).get("parameters") or 0) if model is None else arithmetic.approximate_parameters(model)
    work = 6.0 * weights if model is None else arithmetic.operations_per_token(model, mean)
    taught = inputs.get("teacher")
    if taught is not None:  # forward alone
        work += 2.0 * float(taught.get("parameters") or weights)
    work += arithmetic.BESIDE[device]
    width = execution.processes * execution.nodes if device == "cuda" else 1
    reached = speed(hardware.of(device, computer))
    if model is not None:
        reached = training_speed(model, mean, config.global_batch, execution, device, computer, config.reduce)
    if config.seconds is not None:
        tokens = max(0.0, config.seconds - START[device]) * reached * width / work
    else:
        tokens = float(config.tokens or 0) if config.last_step is None else config.batches.before(config.last_step) * mean
    steps = round(tokens / (config.global_batch * mean))
    kept = execution.keep_checkpoints + config.keep_last - 1 + len(config.milestones)
    kept += steps // config.milestone_every if config.milestone_every else 0
    taken = (0, 0)
    if model is not None:
        taken = training_memory(
            model,
            length,
            config.global_batch,
            execution,
            device,
            computer,
            config.precision,
            config.reduce,
            config.ema is not None,
        )
    return Cost(
        amount=work * tokens,
        speed=reached,
        start=START[device],
        seconds=config.seconds,
        width=width,  # on a CPU the processes share the cores
        kind=device,
        size=float(weights or 1),
        disk_bytes=arithmetic.checkpoint_bytes(weights, config.ema is not None) * (kept + 1),
        memory_bytes=taken[0],
        gpu_memory_bytes=taken[1],
        makes={
            "parameters": weights,
            "model": None if model is None else model.model_dump(mode="json"),
            "tokens": tokens,
            "vocab_size": data.get("vocab_size"),
        },
    )


def _source(inputs: Mapping[str, Facts]) -> Facts:
    return next((inputs[role] for role in ("continue", "checkpoint") if role in inputs), {})


def afterwards(facts: Facts) -> Pace | None:
    """Operations a second of the training proper; the rest of its time is told as the start."""
    measured, tokens = facts.get("tokens_per_second"), float(facts["tokens"])
    kind, weights = str(facts.get("device") or "cpu"), float(facts["parameters"])
    config: Mapping[str, Any] = facts["config"]
    if not tokens:
        return None
    work = 6.0 * weights
    if config.get("model"):
        model = model_config(config["model"])
        if not model.vocab_size:  # as many as the weights beside the layers say
            inside = arithmetic.approximate_parameters(model)
            of_a_piece = arithmetic.approximate_parameters(model.model_copy(update={"vocab_size": 1})) - inside
            model = model.model_copy(update={"vocab_size": max(1, round((weights - inside) / of_a_piece))})
        work = arithmetic.operations_per_token(model, float(facts["tokens"]) / max(1, int(facts["rows"])))
    work += arithmetic.BESIDE[kind]
    seconds = tokens / float(measured) if measured else without_start(facts["seconds"], START[kind])
    width = int(facts.get("world_size") or 1) if kind == "cuda" else 1
    return Pace(amount=work * tokens, seconds=seconds, width=width, kind=kind, size=weights)


COSTS = Costs(ahead=ahead, afterwards=afterwards)
