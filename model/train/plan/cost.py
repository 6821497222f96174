"""Cost estimates of stages that run a model: operations, checkpoints, and memory. No torch.

Pretraining is estimated by `cloze.model.train.plan.estimates`, all other stages by passes over
tokens (`pass_cost`, `pass_throughput`): 6 operations per weight and token, 2 in a forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core.artifacts.artifact import read_manifest
from cloze.core.stages.cost import (
    CostEstimate,
    CostModel,
    MachineSpec,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
    subtract_startup,
)
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import role_of
from cloze.model import hardware
from cloze.model.families.config import ModelConfig
from cloze.model.families.registry import model_config
from cloze.model.objectives import share_left_to_right
from cloze.model.train.config import PretrainConfig
from cloze.model.train.dial import RULES
from cloze.model.train.plan import estimates
from cloze.model.train.plan.estimates import (
    OVERHEAD_OPERATIONS,
    WEIGHT_BYTES,
    ComputeOptions,
    StepCost,
    operations,
)
from cloze.model.train.plan.sizing import describe_size, resolve_size
from cloze.model.train.spec.engine_choice import STAGES

# Seconds for torch, the process group, the model, and the last checkpoint's hash.
START = {"cpu": 12.0, "cuda": 25.0}
FULL = 0.95  # fill of a row, if the dataset does not exist yet
USUAL_VOCABULARY = 30_000
PASS_START = 10.0  # seconds of any stage that reads a checkpoint
HEADWAY = 0.4  # share of pretraining's speed: short rows, small batches


def model_of(facts: Metadata) -> Any:
    """Return the model in a training's metadata: values, a name, or None."""
    return facts.get("model") or (facts.get("config") or {}).get("model")


def source_model(source: Metadata, default: Any = None) -> tuple[Any, ModelConfig | None, int]:
    """Return a checkpoint's model: name or values, config, and number of weights (0: unknown)."""
    spec = model_of(source) or default
    model = None if spec is None else model_config(spec)
    estimate = 0 if model is None else estimates.approximate_parameters(model)
    return spec, model, int(source.get("parameters") or estimate)


def pass_cost(
    plan: PlannedBuild[Any],
    *,
    tokens: float,
    weights: int,
    forward: bool = False,
    makes: Metadata | None = None,
    memory_bytes: int | None = None,
    gpu_memory_bytes: int | None = None,
    disk_bytes: int = 1 << 20,
    width: int = 1,
) -> CostEstimate:
    """Estimate the cost of passes of a model over `tokens`.

    Args:
        tokens: total over all passes.
        forward: True if no gradients are computed.
        memory_bytes, gpu_memory_bytes: None: a process with the weights.
    """
    weight_bytes, device = WEIGHT_BYTES * weights, plan.device
    default_gpu_bytes = (1 << 30) + weight_bytes if device == "cuda" else 0
    return CostEstimate(
        work=operations(weights, tokens, device, forward),
        speed=HEADWAY * hardware.of(device, plan.machine).speed(),
        startup_seconds=PASS_START,
        parallelism=width if device == "cuda" else 1,
        kind=device,
        size=float(weights or 1),
        disk_bytes=disk_bytes,
        memory_bytes=int(estimates.PROCESS["cpu"]) + weight_bytes
        if memory_bytes is None
        else memory_bytes,
        gpu_memory_bytes=default_gpu_bytes if gpu_memory_bytes is None else gpu_memory_bytes,
        expected_metadata=makes or {},
    )


def pass_throughput(
    facts: Metadata, *, weights: float, tokens: float, forward: bool = False, width: int = 1
) -> MeasuredThroughput:
    """Return the measured operations per second of a stage that `pass_cost` estimates."""
    requested = (facts.get("execution") or {}).get("device")
    kind = str(facts.get("device") or ("cuda" if requested == "cuda" else "cpu"))
    return MeasuredThroughput(
        amount=operations(weights, tokens, kind, forward),
        seconds=subtract_startup(facts["seconds"], PASS_START),
        width=width if kind == "cuda" else 1,
        kind=kind,
        size=weights,
    )


def execution_memory(
    model: ModelConfig,
    length: int,
    rows: int,
    execution: Execution,
    device: hardware.Device,
    *,
    precision: str = "auto",
    causal_share: float = 0.0,
) -> tuple[int, int]:
    """Estimate bytes of the machine and of each GPU, with `rows` rows per step."""
    ranks, fsdp = execution.processes * execution.nodes, execution.engine == "fsdp"
    how = ComputeOptions(
        device=device.kind,
        bf16=device.computes_bf16 if precision == "auto" else precision != "fp32",
        checkpointing=execution.activation_checkpointing,
        offload=execution.offload == "cpu",
        fsdp=fsdp,
        ranks=ranks,
        zero=execution.zero or (STAGES["fsdp"][0] if fsdp else 0),
        causal_share=causal_share,
    )
    step, micro_batch = StepCost(model, length, how), execution.micro_batch
    if micro_batch is None:
        on_cpu = device.kind == "cpu"
        micro_batch = estimates.cpu_rows(length) if on_cpu else step.fitting_rows(device.memory)
    estimate = step.memory(min(-(-rows // ranks), max(1, micro_batch)))
    if device.kind == "cpu":
        return int(execution.processes * estimate.total), 0
    return int(execution.processes * estimate.host), int(estimate.total)


def dataset_metadata(inputs: Mapping[str, Metadata]) -> Metadata:
    """Return the data's metadata; of a mixture the first dataset's, with summed rows."""
    datasets = [facts for key, facts in sorted(inputs.items()) if role_of(key) == "dataset"]
    if len(datasets) == 1:
        return datasets[0]
    rows = [int(facts.get("rows") or 0) for facts in datasets]
    mean_lengths = [float(facts.get("mean_length") or 0.0) for facts in datasets]
    tokens = sum(count * mean_length for count, mean_length in zip(rows, mean_lengths, strict=True))
    mean_length = tokens / sum(rows) if sum(rows) else None
    return {**datasets[0], "rows": sum(rows), "mean_length": mean_length}


def row_tokens(data: Metadata) -> float:
    """Return the mean number of tokens of a row."""
    return float(data.get("mean_length") or FULL * int(data.get("length") or 128))


def size_for_run(
    config: PretrainConfig,
    inputs: Mapping[str, str],
    vocabulary: int,
    device: str,
    ranks: int,
    kept: Mapping[str, Any] | None,
) -> PretrainConfig:
    """Return the config for a run's datasets and devices; unchanged without `size`.

    Args:
        inputs: directory by input key.
        device: `cpu` or `cuda`.
        kept: config of the checkpoint to resume, whose choices count on every machine.
    """
    if config.size is None:
        return config
    # The checkpoint's sizes, not this machine's: another speed would choose another model.
    if kept is not None:
        chosen = type(config).model_validate(kept)
        return config.model_copy(update={name: getattr(chosen, name) for name in RULES})
    import torch

    paths = {key: path for key, path in inputs.items() if role_of(key) == "dataset"}
    data = dataset_metadata({key: read_manifest(path).summary for key, path in paths.items()})
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    computer = MachineSpec(cpus=torch.get_num_threads(), gpu=gpu)
    speed = ranks * hardware.of(device, computer).speed()
    return resolve_size(config, vocabulary, row_tokens(data), speed, device)


def _trained(
    model: ModelConfig | None, source: Metadata | None, vocabulary: int
) -> ModelConfig | None:
    """Return the config's model, or the checkpoint's; None: not known yet."""
    if model is None:
        spec = "bert-base" if source is None else model_of(source)
        if spec is None:
            return None
        model = model_config(spec)
    return model if model.vocab_size else model.model_copy(update={"vocab_size": vocabulary})


def ahead(plan: PlannedBuild[PretrainConfig]) -> CostEstimate:
    """Estimate a pretraining from model, steps, and how full the dataset's rows are."""
    config, inputs, execution = plan.config, plan.inputs, plan.execution
    data, kind = dataset_metadata(inputs), plan.device
    device = hardware.of(kind, plan.machine)
    length, mean_length = int(data.get("length") or 128), row_tokens(data)
    source = next((inputs[role] for role in ("continue", "checkpoint") if role in inputs), None)
    vocabulary = int(data.get("vocab_size") or USUAL_VOCABULARY)
    # Processes share a CPU's cores.
    width = execution.processes * execution.nodes if kind == "cuda" else 1
    config = resolve_size(config, vocabulary, mean_length, width * device.speed(), kind)
    model = _trained(config.model, source, vocabulary)
    causal_share = share_left_to_right(config.objectives or (), config.causal_share)
    if model is None:
        weights, memory_bytes = int((source or {}).get("parameters") or 0), (0, 0)
        work = operations(weights, 1.0, kind)
    else:
        weights = estimates.approximate_parameters(model)
        step = StepCost.of(model, mean_length, device=kind, causal_share=causal_share)
        work = step.operations
        memory_bytes = execution_memory(
            model,
            length,
            config.global_batch,
            execution,
            device,
            precision=config.precision,
            causal_share=causal_share,
        )
    if "teacher" in inputs:
        work += operations(float(inputs["teacher"].get("parameters") or weights), 1.0, forward=True)
    if config.seconds is not None:
        tokens = max(0.0, config.seconds - START[kind]) * device.speed() * width / work
    elif config.phase_steps is None:
        tokens = float(config.tokens or 0)
    else:
        tokens = config.batches.samples_before(config.phase_steps) * mean_length
    steps = round(tokens / (config.global_batch * mean_length))
    # Those kept for a merge include the newest, which `keep_checkpoints` has counted.
    checkpoint_count = (
        execution.keep_checkpoints
        + config.keep_for_merge
        - 1
        + len(config.milestones + config.milestone_words)
    )
    return CostEstimate(
        work=work * tokens,
        speed=device.speed(),
        startup_seconds=START[kind],
        seconds=config.seconds,
        parallelism=width,
        kind=kind,
        size=float(weights or 1),
        disk_bytes=estimates.checkpoint_bytes(weights) * (checkpoint_count + 1),
        memory_bytes=memory_bytes[0],
        gpu_memory_bytes=memory_bytes[1],
        note="; ".join(describe_size(config).values()),
        expected_metadata={
            "parameters": weights,
            "model": None if model is None else model.model_dump(mode="json"),
            "tokens": tokens,
            "steps": steps,
            "vocab_size": data.get("vocab_size"),
        },
    )


def afterwards(facts: Metadata) -> MeasuredThroughput | None:
    """Return the measured operations per second of a pretraining's steps, without its start."""
    measured_speed, tokens = facts.get("tokens_per_second"), float(facts["tokens"])
    kind, weights = str(facts.get("device") or "cpu"), float(facts["parameters"])
    if not tokens:
        return None
    flops = float(facts.get("training_flops") or operations(weights, tokens))
    seconds = (
        tokens / float(measured_speed)
        if measured_speed
        else subtract_startup(facts["seconds"], START[kind])
    )
    width = int(facts.get("world_size") or 1) if kind == "cuda" else 1
    return MeasuredThroughput(
        amount=flops + OVERHEAD_OPERATIONS[kind] * tokens,
        seconds=seconds,
        width=width,
        kind=kind,
        size=weights,
    )


COSTS = CostModel(estimate=ahead, measure=afterwards)
