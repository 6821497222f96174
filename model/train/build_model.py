"""Setup of a pretraining: initial weights, network, engine, and the split of the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.model.data.batch import empty_batch
from cloze.model.data.layouts import LayoutKind, layout_for
from cloze.model.families.models import attach, without_training_modules
from cloze.model.layers.encoder import enable_activation_checkpointing
from cloze.model.objectives import still_untrained
from cloze.model.objectives.distillation import RECORDED, Comparison, add_projection
from cloze.model.random_streams import Stream
from cloze.model.train import compile_policy
from cloze.model.train.compile_policy import WorkEstimate
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.loop.data import objective_weights
from cloze.model.train.optimizers import DEFAULT_OPTIMIZER
from cloze.model.train.optimizers.parameters import freeze_unused
from cloze.model.train.plan import micro_batch
from cloze.model.train.plan.estimates import StepCost
from cloze.model.train.precision import DTYPES, check_grad_reduce_dtype
from cloze.model.train.resume import continuation
from cloze.model.train.resume.initialization import build_network
from cloze.model.train.spec.engine_choice import EngineConfig, choose_engine
from cloze.model.train.spec.levers import LeverContext, usable_levers
from cloze.model.train.start import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """The network and its engine.

    Attributes:
        networks: the trained network and the teacher's.
        parameters: number of parameters, before an engine shards them.
        untrained: modules with random weights that no objective trains.
        layout: layout of training batches in the layers.
        plan: how the global batch is split into micro-batches.
    """

    scoring: PretrainModule
    networks: list[torch.nn.Module]
    parameters: int
    untrained: tuple[str, ...]
    engine: EngineConfig
    compiled: bool
    layout: LayoutKind
    plan: micro_batch.BatchPlan

    @property
    def has_fixed_shape(self) -> bool:
        """True if all batches have one shape, for a compiled step on a CPU."""
        return self.compiled and self.scoring.device_type == "cpu"


def build_model(start: Start) -> BuiltModel:
    """Build the network, choose its engine, decide whether to compile it, and split the batch."""
    config, execution, world, notes = start.config, start.build.execution, start.world, start.notes
    precision = start.precision
    plan = _plan(start, execution.micro_batch)
    check_grad_reduce_dtype(config.grad_reduce_dtype, precision)
    torch.manual_seed(int(random_keys.fold_in(config.seed, Stream.WEIGHTS)))

    def extend(network: torch.nn.Module) -> None:
        for companion in start.companions:
            companion.extend(network)
        if start.teacher is not None:
            add_projection(network, start.model, start.teacher.model, start.names)

    network, missing = build_network(start.initial, extend)
    attach(network, start.data.tokenizer, start.build.path)
    missing = list(without_training_modules(dict.fromkeys(missing)))
    if missing and start.initial.state is not None:
        notes.append(f"the checkpoint lacks what begins at random: {', '.join(missing)}")
    if execution.activation_checkpointing:
        enable_activation_checkpointing(network)
    modules = {name.split(".", 1)[0] for name in missing} - {"encoder"}
    own = without_training_modules(dict(network.named_parameters()))
    parameters = sum(parameter.numel() for parameter in own.values())
    memory = micro_batch.device_memory(world.device)
    engine = choose_engine(execution, world.size, parameters, memory)
    if engine.reason:
        notes.append(f"engine {engine.name}: {engine.reason}")
    scoring = _scoring(start, network)
    networks = [network, *([start.teacher.network] if start.teacher else [])]

    def layout(compiled: bool) -> LayoutKind:
        dtype, packed = DTYPES[precision], start.info.packed
        kind = layout_for(networks, world.device, dtype, compiled=compiled, packed_rows=packed)
        return "fixed" if any(lever.fixed_sizes for lever in engine.levers) else kind

    context = _lever_context(start, engine, layout(False))
    engine = replace(engine, levers=usable_levers(execution.gpu_levers, context, notes))
    # fsdp gathers weights between the layers at both of its stages; a CPU compiles the whole step.
    gathers = world.device.type == "cpu" if engine.name == "fsdp" else engine.zero == 3
    work = WorkEstimate.of_rank(config, plan, start.info.length, world.size)
    compiled = _compiled(start, work, gathers)
    notes += [
        note for lever in engine.levers if (note := lever.prepare(network, context, compiled))
    ]
    whole = compile_policy.repays_whole_step(start.model, work)
    scoring.set_compiled(
        compiled,
        whole=whole and any(lever.whole_step for lever in engine.levers),
        dynamic=not any(lever.static for lever in engine.levers),
    )
    if start.resumed is not None:
        continuation.check_optimizer(start.resumed, network, config.optimizer or DEFAULT_OPTIMIZER)
    if config.initial_batch:
        # Whole micro-batches at every level give a growing batch few shapes.
        plan = _plan(start, min(plan.micro_batch, -(-config.initial_batch // world.size)))
    return BuiltModel(
        scoring=scoring,
        networks=networks,
        parameters=parameters,
        untrained=still_untrained({*start.initial.untrained, *modules}, start.names),
        engine=engine,
        compiled=compiled,
        layout=layout(compiled),
        plan=plan,
    )


def _lever_context(start: Start, engine: EngineConfig, layout: LayoutKind) -> LeverContext:
    return LeverContext(
        device=start.world.device,
        engine=engine.name,
        processes=start.world.size,
        precision=start.precision,
        optimizer=start.config.optimizer or DEFAULT_OPTIMIZER,
        layout=layout,
        causal_share=start.directions.causal_share,
        second_network="a teacher or companion" if start.teacher or start.companions else "",
    )


def _plan(start: Start, rows: int | None) -> micro_batch.BatchPlan:
    """Plan how the global batch is split into micro-batches; None: `rows` are estimated."""
    world = start.world
    cost = StepCost.of(
        start.model,
        start.info.length,
        micro_batch.compute_options(start.build.execution, start.precision, world.device),
        causal_share=start.directions.causal_share,
        teacher=start.teacher.model if start.teacher else None,
    )
    return micro_batch.plan(start.config.global_batch, rows, cost, world)


def _compiled(start: Start, work: WorkEstimate, gathers: bool) -> bool:
    """Return True if the training step is compiled; rank 0 decides."""
    execution, world = start.build.execution, start.world
    uncompiled = [each.uncompiled for each in start.companions if each.uncompiled]
    if start.teacher is not None and RECORDED & set(start.names):
        uncompiled.append("a teacher's states")
    if uncompiled:
        if execution.compile:
            raise UsageError(f"compile (true) is not for {' and '.join(uncompiled)}; omit it")
        return False
    decision = compile_policy.given_decision(
        execution.compile,
        start.own.run.compiled if start.own else None,
        start.model,
        world.device,
        gathers,
        start.directions,
        execution.activation_checkpointing,
    )
    if decision is None:
        decision = compile_policy.decide_on_gpu(start.model, work)
    if decision.reason:
        start.notes.append(f"{'' if decision.compiled else 'not '}compiled: {decision.reason}")
    return bool(world.decide_on_rank_zero(lambda: int(decision.compiled)))


def _scoring(start: Start, network: torch.nn.Module) -> PretrainModule:
    """Build the module of network and loss; parameters that no objective uses are frozen."""
    device, teacher, distill = start.world.device, start.teacher, start.distill
    precision = start.precision
    for companion in start.companions:
        if (own := companion.module(network, precision, device.type)) is not None:
            return own
    weights = {
        **start.model.loss_weights(),
        **({} if distill is None else distill.loss_weights()),
        **objective_weights(start.names, start.directions),
    }
    comparison = None
    if teacher is not None and RECORDED & set(start.names):
        models = (start.model, teacher.model)
        heads = None if distill is None else distill.relation_heads
        comparison = Comparison(network, teacher.network, models, start.names, heads)
    scoring = PretrainModule(
        network,
        start.names,
        precision,
        device_type=device.type,
        weights=weights,
        teacher=teacher,
        comparison=comparison,
    )
    batch = empty_batch(pad=start.info.special.pad, directions=start.directions)
    batch["mask_id"] = torch.tensor(-1)
    unused = freeze_unused(scoring, batch)
    if teacher is not None:  # only now: `freeze_unused` runs the network on the CPU
        teacher.to(device)
    if unused:
        start.notes.append(f"not trained, as no objective uses them: {', '.join(unused)}")
    return scoring
