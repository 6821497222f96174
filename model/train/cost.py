"""What the stage pretrain takes: operations of its steps, checkpoints, and the memory of weights and activations. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.families.config import ModelConfig
from model.families.presets import model_config
from model.train import arithmetic
from model.train.config import PretrainConfig
from pipeline.core.cost import Computer, Cost, Costs, Facts, Pace, without_start
from pipeline.core.execution import Execution

START = {"cpu": 12.0, "cuda": 25.0}  # torch, the process group, the model, the last checkpoint and its hash
# Operations a second that large models reach, of a core: two of a Xeon with AMX (benchmarks/README.md: 1,150 tokens/s of BERT-base); of a
# GPU of the A100's kind, a third of its bf16 peak.
SPEED = {"cpu": 3.5e11, "cuda": 1.0e14}
# What a token takes beside them (embeddings, norms, the optimizer, loading, starting kernels), as so many operations: it makes small models
# slower than their matrices are. On the CPU it follows from BERT-tiny's 44,000 and BERT-mini's 18,000 tokens/s there; on a GPU it is a guess.
BESIDE = {"cpu": 1.2e7, "cuda": 5.0e7}
PROCESS_BYTES = 1200 << 20  # of a process with torch, beside weights and activations
FULL = 0.95  # of a row, where the dataset is still to be made
GPU_BYTES = 80 << 30  # of a GPU that nobody has looked at
USUAL_VOCABULARY = 30_000


def device_of(execution: Execution, computer: Computer) -> str:
    """What a training will compute on."""
    if execution.device == "auto":
        return "cuda" if computer.gpus else "cpu"
    return execution.device


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
    model: ModelConfig, length: int, rows: int, execution: Execution, device: str, computer: Computer
) -> tuple[int, int]:
    """(bytes of the machine's memory, bytes of each GPU) that training takes with so many rows a step.

    ZeRO shares out two thirds of the state from stage 1 on, and all of it in stage 3.
    """
    processes, weights = execution.processes, arithmetic.approximate_parameters(model)
    shared = {0: 1.0, 1: 0.5, 2: 0.25, 3: 0.0}[execution.zero or 0]
    state = arithmetic.STATE_BYTES * weights * (shared + (1 - shared) / processes)
    most = -(-rows // (processes * execution.nodes))
    if device == "cpu":
        micro = min(most, execution.micro_batch or max(1, arithmetic.CPU_TOKENS // length))
        # both in fp32, and what is kept for the backward pass twice as wide
        return int(processes * (PROCESS_BYTES + state + 2 * micro * arithmetic.activation_bytes(model, length))), 0
    micro = min(most, execution.micro_batch or arithmetic.fitting_rows(computer.gpu_bytes or GPU_BYTES, model, length))
    return int(processes * PROCESS_BYTES * 2), int(state + micro * arithmetic.activation_bytes(model, length) + (1 << 30))


def ahead(
    config: PretrainConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """From the model's size, the steps, and how full the dataset's rows are."""
    del before
    data, device = inputs["dataset"], device_of(execution, computer)
    length = int(data.get("length") or 128)
    mean = float(data.get("mean_length") or FULL * length)
    model = sized(config.model, inputs, int(data.get("vocab_size") or USUAL_VOCABULARY))
    weights = int(_source(inputs).get("parameters") or 0) if model is None else arithmetic.approximate_parameters(model)
    work = 6.0 * weights if model is None else arithmetic.operations_per_token(model, mean)
    taught = inputs.get("teacher")
    if taught is not None:  # forward alone
        work += 2.0 * float(taught.get("parameters") or weights)
    work += BESIDE[device]
    cuda = device == "cuda"
    speed, width = SPEED[device] * (1 if cuda else computer.cpus), execution.processes * execution.nodes if cuda else 1
    if config.seconds is not None:
        tokens = max(0.0, config.seconds - START[device]) * speed * width / work
    else:
        tokens = float(config.tokens or 0) if config.last_step is None else config.batches.before(config.last_step) * mean
    steps = round(tokens / (config.global_batch * mean))
    kept = (
        execution.keep_checkpoints + len(config.milestones) + (steps // config.milestone_every if config.milestone_every else 0)
    )
    memory = (0, 0) if model is None else training_memory(model, length, config.global_batch, execution, device, computer)
    return Cost(
        amount=work * tokens,
        speed=speed,
        start=START[device],
        seconds=config.seconds,
        width=width,  # on a CPU the processes share the cores
        kind=device,
        size=float(weights or 1),
        disk_bytes=arithmetic.BYTES_A_WEIGHT * weights * (kept + 1),
        memory_bytes=memory[0],
        gpu_memory_bytes=memory[1],
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
    speed, tokens = facts.get("tokens_per_second"), float(facts["tokens"])
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
    work += BESIDE[kind]
    seconds = tokens / float(speed) if speed else without_start(facts["seconds"], START[kind])
    width = int(facts.get("world_size") or 1) if kind == "cuda" else 1
    return Pace(amount=work * tokens, seconds=seconds, width=width, kind=kind, size=weights)


COSTS = Costs(ahead=ahead, afterwards=afterwards)
