"""What is put together before the first step: data, model, engine, and the checkpoint that training goes on from."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch

from model import checkpoint
from model.data.layouts import Kind, layout_for
from model.data.sampler import Sampler
from model.data.shards import Shards, verify
from model.data.training import training_order, training_shards
from model.families.config import ModelConfig
from model.objectives import choose
from model.train import sizing, state
from model.train.compiling import decide
from model.train.config import PretrainConfig
from model.train.distributed import World
from model.train.heldout import HeldOut
from model.train.precision import DTYPES, Precision, resolve
from model.train.scoring import Scoring, freeze_unused
from model.train.start import build as new_network
from model.train.start import start
from model.train.teacher import load_teacher
from pipeline.core import random_keys, storage
from pipeline.core.errors import DataError, UsageError
from pipeline.core.shards import HELDOUT, TRAIN
from pipeline.core.stage import Build
from pipeline.dataset.schema import DatasetInfo

_WEIGHTS = 2  # random stream, beside the sampler's
TOKENIZER = "tokenizer"
ZERO_STAGES = (0, 1, 2, 3)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that stays the same while training."""

    world: World
    info: DatasetInfo
    train: Shards
    heldout: HeldOut
    sampler: Sampler
    plan: sizing.Plan
    zero: int
    precision: Precision
    model: ModelConfig
    scoring: Scoring
    resumed: state.Resumed | None
    tokenizer: str
    untrained: bool
    fixed_predictions: int | None
    layout: Kind
    compiled: bool
    notes: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.scoring.parameters())

    @property
    def expected_first_loss(self) -> float | None:
        """What guessing at random costs: ln V, and ln 2 for a pair task. Untrained weights must come near it."""
        return self.scoring.chance(self.model.vocab_size) if self.untrained else None


def prepare(config: PretrainConfig, build: Build, world: World) -> Setup:
    """Open the dataset, build the model or read it back, and choose how to cut the batch. Every rank calls it.

    Raises:
        DataError: the dataset or every checkpoint is damaged, or there is nothing to train on.
        UsageError: the model cannot read the dataset, or the machine cannot run it like this.
    """
    zero = build.execution.zero
    if zero not in ZERO_STAGES:
        raise UsageError(f"zero ({zero}) is no ZeRO stage; use 0, 1, 2 or 3")
    if not storage.is_local(build.path):
        raise UsageError(f"{build.path} is not on a local disk, where checkpoints must be renamed; train on one and copy")
    dataset = build.inputs["dataset"]
    world.first_decides(lambda: verify(dataset))
    train = training_shards(dataset, config.dynamic)
    if not len(train) or train.info is None:
        raise DataError(f"{dataset} has no training rows ({TRAIN}-*.arrow); make a dataset from more text")
    info = train.info
    heldout = Shards(dataset, HELDOUT, info)
    tokenizer = storage.join(dataset, TOKENIZER)
    if not storage.is_dir(tokenizer):
        raise DataError(f"{tokenizer} is missing, so no checkpoint could be used; make the dataset again")
    path = build.inputs.get("teacher")
    teacher = None if path is None else load_teacher(path, config.model, info, tokenizer)
    begin = start(config.model, build.inputs.get("checkpoint"), info, tokenizer, teacher)
    model = begin.model
    names = choose(model, info, config.objectives, teacher.model if teacher else None)
    plan = sizing.plan(config.global_batch, build.execution.micro_batch, model, info.length, world)
    precision = resolve(config.precision, world.device)
    zero = zero if world.size > 1 else 0  # there is nothing to share out among one
    tokens = float(config.steps * plan.micro_batch * plan.accumulation * info.length)
    choice = decide(build.execution.compile, model, tokens, train, world.device, precision, zero)
    compiled = bool(world.first_decides(lambda: int(choice.compiled)))
    fixed = train.most_predictions() if compiled else None
    notes: list[str] = []
    if choice.reason:
        notes.append(f"not compiled: {choice.reason}")
    resumed = _resumed(build, world, notes)
    torch.manual_seed(int(random_keys.derive(config.seed, _WEIGHTS)))
    network, lacking = new_network(begin)
    if lacking:
        notes.append(f"the checkpoint lacks what begins at random: {', '.join(lacking)}")
    if resumed is not None:
        network.load_state_dict(resumed.weights)
    scoring = Scoring(network, names, precision, compiled, world.device.type, model.loss_weights(), teacher)
    unused = freeze_unused(scoring, info.special.pad)
    if unused:
        notes.append(f"not trained, as no objective uses them: {', '.join(unused)}")
    networks = [network, *([teacher.network] if teacher else [])]
    device, dtype = world.device, DTYPES[precision]
    setup = Setup(
        world=world,
        info=info,
        train=train,
        heldout=HeldOut(
            shards=heldout,
            rows=min(config.heldout_rows, len(heldout)),
            batch=plan.micro_batch,
            pad=info.special.pad,
            mask=info.special.mask,
            longest=info.length,
            layout=layout_for(networks, device, dtype, packed_rows=info.packed),
        ),
        sampler=training_order(train, config.seed, config.dynamic, config.global_batch, config.length_group),
        plan=plan,
        zero=zero,
        precision=precision,
        model=model,
        scoring=scoring,
        resumed=resumed,
        tokenizer=tokenizer,
        untrained=begin.state is None and not begin.taken,
        fixed_predictions=fixed,
        layout=layout_for(networks, device, dtype, compiled=compiled, packed_rows=info.packed),
        compiled=compiled,
        notes=notes,
    )
    world.first_decides(lambda: sizing.check_disk(build.path, setup.parameters, build.execution.keep_checkpoints))
    return setup


def _resumed(build: Build, world: World, notes: list[str]) -> state.Resumed | None:
    """The newest usable checkpoint, which the first rank chooses; None where none was ever finished."""

    def choose() -> int:
        directory = state.newest(build.path, build.fingerprint, notes)
        return -1 if directory is None else int(directory.rsplit("-", 1)[1])

    step = world.first_decides(choose)
    if step < 0:
        return None
    return state.read(storage.join(build.path, checkpoint.STEPS, checkpoint.step_name(step)))
