"""What a pretraining is put together from before its first step: data, model, objectives, the checkpoint it goes on from."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch

from model.data.collate import blank
from model.data.layouts import layout_for
from model.families.config import ModelConfig
from model.layers.encoder import recompute_layers
from model.objectives import choose, trained_heads
from model.train import engines, phases, sizing, state, trial
from model.train.alarms import Alarms, too_steep
from model.train.bands import training_bands
from model.train.compiling import Work, compiling_seconds, decide
from model.train.config import PretrainConfig
from model.train.data import open_data
from model.train.distributed import World
from model.train.heldout import HeldOut, HeldOutMeasure, counted, entropy
from model.train.interfaces import START, Milestones, Position, Saved, Training
from model.train.mixed import Counted
from model.train.optimizers import DEFAULT_OPTIMIZER
from model.train.parameters import freeze_unused
from model.train.precision import DTYPES, check_reduce, multiply_fp32, settle
from model.train.recipe import pace_of, recipe
from model.train.samples import directions_of, shares, thinning_of
from model.train.scoring import Scoring
from model.train.source import DatasetSource
from model.train.start import Beginning, begin, begin_with_unigrams, build_network
from model.train.teacher import load_teacher
from model.train.utilisation import utilisation
from pipeline.core import random_keys
from pipeline.core.stage import Build

_WEIGHTS = 2  # random stream, beside the sampler's

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A pretraining ready to run, and what its summary says of it beside."""

    training: Training
    scoring: Scoring
    source: DatasetSource
    heldout: HeldOut
    measure: HeldOutMeasure
    resumed: state.Resumed | None
    parameters: int


def prepare(config: PretrainConfig, build: Build, world: World) -> Setup:
    """Open the dataset, build the model or read it back, and choose how to cut the batch. Every rank calls it.

    Raises:
        DataError: the dataset or every checkpoint is damaged, or there is nothing to train on.
        UsageError: the model cannot read the dataset, or the machine cannot run it like this.
    """
    phases.check_inputs(build.inputs)
    data = open_data(config, build, world)
    info, train = data.info, data.train
    notes: list[str] = []
    resumed = state.resume(build.path, build.fingerprint, world, notes)
    phase = build.inputs.get("continue")
    if resumed is None and phase is not None:
        resumed = phases.trunk(phase, world, build)
    begun = _begun(resumed, data.fingerprint)
    phases.check_schedule(config, begun)
    path = build.inputs.get("teacher")
    teacher = None if path is None else load_teacher(path, config.model, info, data.tokenizer, build)
    if teacher is not None:
        teacher.to(world.device)
    if resumed is not None and phase is not None:
        beginning = phases.beginning(resumed, config, info, data.tokenizer)
    else:
        beginning = begin(config.model, build.inputs.get("checkpoint"), info, data.tokenizer, teacher)
    model = beginning.model
    optimizer = config.optimizer or DEFAULT_OPTIMIZER
    if resumed is not None and phase is not None:
        optimizer = phases.optimizer(resumed, config.optimizer)
    config = config.model_copy(update={"model": model, "optimizer": optimizer})
    names = choose(model, info, config.objectives, teacher.model if teacher else None)
    directions = directions_of(names, config.causal_share, config.initial_batch or config.global_batch)
    asked, auto = build.execution.micro_batch, build.execution.micro_batch == trial.AUTO
    plan = sizing.plan(
        config.global_batch,
        asked if isinstance(asked, int) else None,
        model,
        info.length,
        world,
        teacher.model if teacher else None,
        directions.causal_share,
    )
    steep = too_steep(config.peak_learning_rate(), config.suited_learning_rate(), optimizer)
    own = resumed if resumed is not None and resumed.own else None
    precision = settle(config.precision, own.run.precision if own else None, world.device, notes)
    check_reduce(config.reduce, precision)
    multiply_fp32(config.tf32, world.device)
    torch.manual_seed(int(random_keys.derive(config.seed, _WEIGHTS)))
    network, lacking = build_network(beginning)
    if lacking:
        notes.append(f"the checkpoint lacks what begins at random: {', '.join(lacking)}")
    if build.execution.activation_checkpointing:
        recompute_layers(network)
    parameters = sum(parameter.numel() for parameter in network.parameters())  # now: an engine may cut them
    engine = engines.choose(
        build.execution.engine,
        build.execution.zero,
        world.size,
        parameters,
        sizing.device_memory(world.device),
        offload=build.execution.offload,
    )
    if engine.reason:
        notes.append(f"engine {engine.name}: {engine.reason}")
    choice = decide(
        build.execution.compile,
        own.run.compiled if own else None,
        model,
        _computing(config, plan.micro_batch * plan.accumulation, info.length),
        train,
        world.device,
        precision,
        engine.zero,
        directions,
        build.execution.activation_checkpointing,
    )
    if choice.reason:
        notes.append(f"not compiled: {choice.reason}")
    compiled = bool(world.first_decides(lambda: int(choice.compiled)))
    weights = {**model.loss_weights(), **shares(names, directions)}
    scoring = Scoring(network, names, precision, compiled, world.device.type, weights, teacher)
    unused = freeze_unused(scoring, {**blank(pad=info.special.pad, directions=directions), "mask_id": torch.tensor(-1)})
    if unused:
        notes.append(f"not trained, as no objective uses them: {', '.join(unused)}")
    if resumed is not None:
        phases.check_optimizer(resumed, network, optimizer)
    networks = [network, *([teacher.network] if teacher else [])]
    layout = layout_for(networks, world.device, DTYPES[precision], compiled=compiled, packed_rows=info.packed)
    if auto:
        tried = trial.Trial(
            scoring=scoring, model=model, train=train, info=info, layout=layout, directions=directions, zero=engine.zero,
            checkpointing=build.execution.activation_checkpointing, offload=engine.offload, averaging=config.ema is not None,
        )  # fmt: skip
        found = trial.micro_batch(tried, plan.micro_batch * plan.accumulation, world, build.path)
        plan = sizing.plan(config.global_batch, found, model, info.length, world)
        notes.append(f"micro-batch {plan.micro_batch}: {found} rows of {info.length} tokens fit at once")
    if config.initial_batch:  # the levels are whole micro-batches, so that a batch that grows has few shapes
        plan = sizing.plan(
            config.global_batch, min(plan.micro_batch, -(-config.initial_batch // world.size)), model, info.length, world
        )
    source = DatasetSource(
        shards=train,
        info=info,
        sampler=data.order(config, begun),
        batches=config.batches,
        micro_batch=plan.micro_batch,
        thinning=thinning_of(config, info, begun),
        fixed_predictions=train.most_predictions() if compiled else None,
        layout=layout,
        directions=directions,
        begun=begun,
    )
    wanted = min(config.heldout_rows, len(data.heldout))
    heldout = HeldOut(
        shards=data.heldout,
        rows=wanted,
        batch=plan.micro_batch,
        pad=info.special.pad,
        mask=info.special.mask,
        longest=info.length,
        layout=layout_for(networks, world.device, DTYPES[precision], packed_rows=info.packed),
        directions=directions,
        bands=training_bands(train, info.special, model.vocab_size),
    )
    unigrams = config.output_bias == "unigram" and beginning.state is None
    if unigrams and resumed is None:
        begin_with_unigrams(network, model, counted(heldout, train).target_counts(model.vocab_size))
    measure = HeldOutMeasure(
        scoring=scoring,
        heldout=heldout,
        world=world,
        batches=config.batches,
        begun=begun.step,
        steps=config.last_step,
        every=config.evaluate_every,
        passes=1 if config.ema is None else 2,
    )
    if config.last_step is not None:
        looks = measure.looks(config.last_step)
        if min(looks.rows, looks.last) < wanted:
            notes.append(
                f"evaluations score {looks.rows} of {wanted} held-out rows, every {looks.every} steps, the last one {looks.last}:"
                " more would take over 5% of the training"
            )
    milestones = Milestones(steps=frozenset(config.milestones), every=config.milestone_every)
    last = begun.step + (config.last_step or max(config.milestones, default=0))
    checkpoints = build.execution.keep_checkpoints + milestones.within(begun.step, last) + config.keep_last - 1
    world.first_decides(lambda: sizing.check_disk(build.path, parameters, checkpoints, config.ema is not None))
    using = utilisation(model, precision, world.device, world.size) if world.first else None  # the one that tells
    if using is not None and using.peak is None:
        notes.append(using.source)
    pace = pace_of(config, build.path, world, begun, measure, parameters)
    world.first_decides(pace.check)
    training = Training(
        path=build.path,
        config=config.model_dump(mode="json"),
        recipe=recipe(config, precision, pace, begun),
        engine=engine,
        source=source,
        trained=scoring,
        saved=Saved(model=model, heads=trained_heads(model, names), tokenizer=data.tokenizer, dataset=info),
        measure=measure if wanted else None,
        micro_batch=plan.micro_batch,
        accumulation=plan.accumulation,
        compiled=compiled,
        expected_first_loss=None if unigrams else _chance(scoring, beginning),
        log_every=config.lines_every,
        begun=begun,
        data=data.fingerprint,
        milestones=milestones,
        keep_last=config.keep_last,
        utilisation=using,
        mixed=Counted.of(data, source.sampler, begun),
        alarms=_alarms(config, scoring, heldout, model).seen,
        notes=notes,
        warnings=() if steep is None else (steep,),
        figures={"note": f"compiling the training step, about {compiling_seconds(model):.0f} s"} if compiled else {},
    )
    return Setup(
        training=training,
        scoring=scoring,
        source=source,
        heldout=heldout,
        measure=measure,
        resumed=resumed,
        parameters=parameters,
    )


def _begun(resumed: state.Resumed | None, data: str) -> Position:
    """Where this phase begins that reads the data with this fingerprint."""
    if resumed is None:
        return START
    return resumed.run.begun if resumed.own else phases.position(resumed, data)


def _alarms(config: PretrainConfig, scoring: Scoring, heldout: HeldOut, model: ModelConfig) -> Alarms:
    """What is said of its loss."""

    def guessing() -> float | None:
        counts = heldout.target_counts(model.vocab_size)
        return entropy(counts) if scoring.names[0] == "mlm" and counts.sum() else None

    of_pieces = scoring.objectives[0].chance is math.log
    return Alarms(
        scoring.names[0],
        guessing,
        config.global_batch,
        pairs=len(scoring.names) > 1,
        chance=math.log(model.vocab_size) if of_pieces else None,
    )


def _computing(config: PretrainConfig, samples: int, length: int) -> Work:
    """How long this rank will compute: a number of positions, or the time it has."""
    if config.seconds is not None:
        return Work(seconds=config.seconds)
    steps = config.last_step
    return Work(positions=float(config.tokens or 0) if steps is None else float(steps * samples * length))


def _chance(scoring: Scoring, beginning: Beginning) -> float | None:
    """What guessing at random costs: ln V, and ln 2 for a pair task. Untrained weights must come near it."""
    untrained = beginning.state is None and not beginning.taken
    return scoring.chance(beginning.model.vocab_size) if untrained else None
