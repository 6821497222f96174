"""Setup of a pretraining: initial weights, network, engine, and the split of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pkgutil import resolve_name

import numpy as np
import torch

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.model.data.batch import AttentionModes, collate, empty_batch
from cloze.model.data.layouts import LayoutKind, layout_for
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import attach, without_training_modules
from cloze.model.layers.batch import Batch
from cloze.model.layers.encoder import enable_activation_checkpointing
from cloze.model.objectives import choose, still_untrained, transform_of
from cloze.model.objectives.distill_options import DistillOptions
from cloze.model.objectives.distillation import RECORDED, Comparison
from cloze.model.random_streams import Stream
from cloze.model.train import compile_policy
from cloze.model.train.compile_policy import StepTimes, WorkEstimate
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.companion import Companion, Distillation
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.loop.data import (
    TrainingData,
    attention_modes,
    objective_weights,
    open_data,
)
from cloze.model.train.optimizers import DEFAULT_OPTIMIZER
from cloze.model.train.optimizers.parameters import freeze_unused
from cloze.model.train.plan import micro_batch
from cloze.model.train.plan.cost import size_for_run
from cloze.model.train.plan.sizing import describe_size
from cloze.model.train.precision import (
    DTYPES,
    Precision,
    check_grad_reduce_dtype,
    resolve_for_run,
)
from cloze.model.train.resume import continuation, state
from cloze.model.train.resume.initialization import (
    InitialModel,
    Teacher,
    build_network,
    initial_model,
    load_teacher,
)
from cloze.model.train.spec.companions import COMPANIONS
from cloze.model.train.spec.engine_choice import EngineConfig, choose_engine
from cloze.model.train.spec.interfaces import START, StartPosition
from cloze.pipeline.dataset.schema import DatasetInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is known of a training before its network is built.

    Attributes:
        notes: messages for the user, in the order in which they arise.
        config: the config with model, optimizer and what `size` chooses filled in.
        resumed: the checkpoint of this training or of the previous phase.
        start_position: start position of this phase.
        distill: losses against the teacher; None: the family's.
        names: names of the objectives.
    """

    build: BuildContext
    world: World
    data: TrainingData
    notes: list[str]
    config: PretrainConfig
    precision: Precision
    resumed: state.ResumeState | None
    start_position: StartPosition
    initial: InitialModel
    teacher: Teacher | None
    distill: DistillOptions | None
    names: tuple[str, ...]
    directions: AttentionModes
    companions: tuple[Companion, ...]

    @property
    def info(self) -> DatasetInfo:
        return self.data.info

    @property
    def model(self) -> ModelConfig:
        return self.initial.model

    @property
    def own(self) -> state.ResumeState | None:
        """`resumed`, if it is a checkpoint of this training."""
        return self.resumed if self.resumed is not None and self.resumed.same_run else None


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


def find_start(config: PretrainConfig, build: BuildContext, world: World) -> Start:
    """Open the data, find the checkpoint to resume, and choose model, optimizer and objectives."""
    data, notes = open_data(config, build, world), list[str]()
    info, tokenizer = data.info, data.tokenizer
    resumed = state.resume(build.path, build.fingerprint, world, notes)
    phase, teacher_path = build.inputs.get("continue"), build.inputs.get("teacher")
    if resumed is None and phase is not None:
        resumed = continuation.load_trunk(phase, world, build)
    if resumed is None:
        start_position = START
    elif resumed.same_run:
        start_position = resumed.run.start_position
    else:
        start_position = continuation.start_position(resumed, data.fingerprint)
    kept = None if resumed is None else resumed.run.config
    config = size_for_run(
        config, build.inputs, info.vocab_size, world.device.type, world.size, kept
    )
    if kept is None:
        notes.extend(describe_size(config).values())
    continuation.check_schedule(config, start_position)
    distill = config.distill
    if distill is not None and teacher_path is None:
        raise UsageError("distill needs a teacher (found none); name one with --teacher")
    teacher = None if teacher_path is None else load_teacher(teacher_path, info, tokenizer, build)
    optimizer = config.optimizer or DEFAULT_OPTIMIZER
    if resumed is not None and phase is not None:
        initial = continuation.initial_model(resumed, config, info, tokenizer)
        optimizer = continuation.optimizer(resumed, config.optimizer)
    else:
        checkpoint = build.inputs.get("checkpoint")
        initial = initial_model(config.model, checkpoint, info, tokenizer, teacher)
    if teacher is not None:
        if distill is None and not initial.model.learns_from_teacher:
            distill = DistillOptions()
        teacher.prepare_for(initial.model, distill)
    other = teacher.model if teacher else None
    names = choose(initial.model, info, config.objectives, other, distill)
    batch = config.initial_batch or config.global_batch
    given = (config, build, initial.model, info, tokenizer, names)
    found = [resolve_name(kind.load)(*given) for kind in COMPANIONS.loaded().values()]
    companions: list[Companion] = [companion for companion in found if companion is not None]
    if teacher is not None:
        companions.append(Distillation(teacher, initial.model, names))
    config = config.model_copy(update={"model": initial.model, "optimizer": optimizer})
    own = resumed if resumed is not None and resumed.same_run else None
    recorded = None if own is None else own.run.precision
    return Start(
        build=build,
        world=world,
        data=data,
        notes=notes,
        config=config,
        precision=resolve_for_run(config.precision, recorded, world.device, notes),
        resumed=resumed,
        start_position=start_position,
        initial=initial,
        teacher=teacher,
        distill=distill,
        names=tuple(names),
        directions=replace(
            attention_modes(names, config.causal_share, batch),
            transform=transform_of(names, initial.model, info, tokenizer, config.seed),
        ),
        companions=tuple(companions),
    )


def build_model(start: Start) -> BuiltModel:
    """Build the network, choose its engine, decide whether to compile it, and split the batch."""
    config, execution, world, notes = start.config, start.build.execution, start.world, start.notes
    precision = start.precision
    plan = _estimated_plan(start)  # decides on compiling; a trial may correct it
    check_grad_reduce_dtype(config.grad_reduce_dtype, precision)
    torch.manual_seed(int(random_keys.fold_in(config.seed, Stream.WEIGHTS)))

    def extend(network: torch.nn.Module) -> None:
        for companion in start.companions:
            companion.extend(network)

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
        return layout_for(networks, world.device, dtype, compiled=compiled, packed_rows=packed)

    # fsdp gathers weights between the layers at both of its stages; a CPU compiles the whole step.
    gathers = world.device.type == "cpu" if engine.name == "fsdp" else engine.zero == 3
    compiled = _compiled(start, scoring, plan, layout, gathers)
    scoring.set_compiled(compiled)
    if start.resumed is not None:
        continuation.check_optimizer(start.resumed, network, config.optimizer or DEFAULT_OPTIMIZER)
    built = BuiltModel(
        scoring=scoring,
        networks=networks,
        parameters=parameters,
        untrained=still_untrained({*start.initial.untrained, *modules}, start.names),
        engine=engine,
        compiled=compiled,
        layout=layout(compiled),
        plan=plan,
    )
    return replace(built, plan=_fitting_plan(start, built))


def _estimated_plan(start: Start) -> micro_batch.BatchPlan:
    """Plan by estimate how the global batch is split into micro-batches."""
    config, execution, world = start.config, start.build.execution, start.world
    averaging, requested = config.ema is not None, execution.micro_batch
    return micro_batch.plan(
        config.global_batch,
        requested if isinstance(requested, int) else None,
        start.model,
        start.info.length,
        world,
        start.teacher.model if start.teacher else None,
        start.directions.causal_share,
        how=micro_batch.compute_options(
            execution, start.precision, world.device, averaging=averaging
        ),
    )


def _compiled(
    start: Start,
    scoring: PretrainModule,
    plan: micro_batch.BatchPlan,
    layout: Callable[[bool], LayoutKind],
    gathers: bool,
) -> bool:
    """Return True if the training step is compiled; rank 0 decides."""
    config, execution, world = start.config, start.build.execution, start.world
    train = start.data.train
    uncompiled = [each.uncompiled for each in start.companions if each.uncompiled]
    if uncompiled:
        if execution.compile:
            raise UsageError(f"compile (true) is not for {' and '.join(uncompiled)}; omit it")
        return False
    decision = compile_policy.given_decision(
        execution.compile,
        start.own.run.compiled if start.own else None,
        start.model,
        train,
        world.device,
        gathers,
        start.directions,
        execution.activation_checkpointing,
    )

    def first_batch(compiled: bool) -> Batch:
        numbers = np.arange(plan.micro_batch)
        return collate(
            train.take(numbers % len(train), np.zeros_like(numbers)),
            pad=start.info.special.pad,
            longest=start.info.length,
            fixed_predictions=train.most_predictions() if compiled else None,
            layout=layout(compiled),
            directions=start.directions,
            samples=numbers,
        )

    def measure() -> StepTimes:
        if world.is_rank_zero:
            start.build.report.progress(0, None, "steps", {"step": "measuring compiled steps"})
        return compile_policy.measure_steps(scoring, first_batch(False), first_batch(True))

    if decision is None:
        work = WorkEstimate.of_rank(config, plan, start.info.length, world.size)
        decision = compile_policy.decide(work, start.model, scoring.precision, world, measure)
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


def _fitting_plan(start: Start, model: BuiltModel) -> micro_batch.BatchPlan:
    """Return the plan with the micro-batch found by trial, and at most the initial batch."""
    config, build, world, length = start.config, start.build, start.world, start.info.length
    plan = model.plan
    if build.execution.micro_batch == micro_batch.AUTO:
        trial = micro_batch.MicroBatchTrial(
            module=model.scoring,
            loss=model.scoring.uncompiled,
            batch=partial(
                micro_batch.full_batch,
                train=start.data.train,
                info=start.info,
                layout=model.layout,
                directions=start.directions,
            ),
            length=length,
            model=start.model,
            zero=model.engine.zero,
            how=micro_batch.compute_options(
                build.execution,
                start.precision,
                world.device,
                averaging=config.ema is not None,
                engine=model.engine,
            ),
        )
        plan = micro_batch.plan_by_trial(trial, config.global_batch, world, build.path, start.notes)
    # Whole micro-batches at every level give a growing batch few shapes.
    if config.initial_batch:
        rows = min(plan.micro_batch, -(-config.initial_batch // world.size))
        plan = micro_batch.plan(config.global_batch, rows, start.model, length, world)
    return plan
