"""What is known of a training before its network is built: data, checkpoint, config, teacher."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pkgutil import resolve_name

from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.model.data.batch import AttentionModes
from cloze.model.families.config import ModelConfig
from cloze.model.objectives import choose, transform_of
from cloze.model.objectives.distill_options import DistillOptions
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.companion import Companion
from cloze.model.train.loop.data import TrainingData, attention_modes, open_data
from cloze.model.train.optimizers import DEFAULT_OPTIMIZER
from cloze.model.train.plan.cost import size_for_run
from cloze.model.train.plan.sizing import describe_size
from cloze.model.train.precision import Precision, resolve_for_run
from cloze.model.train.resume import continuation, state
from cloze.model.train.resume.initialization import (
    InitialModel,
    Teacher,
    initial_model,
    load_teacher,
)
from cloze.model.train.spec.companions import COMPANIONS
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
    arguments = (config, build, initial.model, info, tokenizer, names)
    found = [resolve_name(kind.load)(*arguments) for kind in COMPANIONS.loaded().values()]
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
        companions=tuple(companion for companion in found if companion is not None),
    )
