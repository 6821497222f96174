"""A phase of a pretraining: it goes on from a checkpoint of another one, with weights, optimizer and counters.

BERT trains at length 128 and then at 512 (Devlin et al., 2019, appendix A.2); a decay branches from a trunk of constant learning rate
(Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", 2024). Step numbers go on, so that
Adam's bias correction, log lines and milestones do. On a dataset that a phase before has read the samples go on where they stood, in the
same order, alone or in a mixture; another begins with its first.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from model import checkpoint
from model.checkpoint import Loaded
from model.families.config import ModelConfig, for_dataset
from model.train import state
from model.train.config import PretrainConfig
from model.train.distributed import World
from model.train.interfaces import Position
from model.train.optimizers import optimizer_kind
from model.train.parameters import optimizer_states
from model.train.start import Beginning, check_same_shape
from model.train.vocabulary import check_vocabulary
from pipeline import tokenizer
from pipeline.core import artifact, checkpoints, storage
from pipeline.core.errors import UsageError
from pipeline.core.stage import Build
from pipeline.dataset.schema import DatasetInfo


def check_inputs(inputs: Mapping[str, str]) -> None:
    """Refuse to begin a phase from two places.

    Raises:
        UsageError: it would.
    """
    if "continue" in inputs and "checkpoint" in inputs:
        raise UsageError(
            f"continue ({inputs['continue']}) and checkpoint ({inputs['checkpoint']}) exclude each other: continue goes on with"
            " optimizer and step numbers, checkpoint begins anew from the weights; leave one out"
        )


def trunk(path: str, world: World, build: Build) -> state.Resumed:
    """The training to go on from, read from an artifact of pretrain or one of its checkpoints. Every rank calls it.

    It is held as long as `build` goes on.

    Raises:
        UsageError: `path` is neither, or a training that goes on.
        DataError: there is no checkpoint, or it is damaged.
    """
    if checkpoints.complete_steps(path) and not artifact.is_artifact(path):
        raise UsageError(
            f"continue ({path}) is not finished; wait for it, or name one of its checkpoints ({checkpoints.STEPS}/step-…)"
        )
    directory = build.cleanup.enter_context(checkpoint.held(path))  # its tensors are read later
    if not storage.exists(storage.join(directory, checkpoint.TRAINING)):
        raise UsageError(
            f"continue ({path}) holds weights without a training's state; begin a new training from them with checkpoint"
        )
    world.first_decides(lambda: _verified(directory))
    return state.read(directory).as_phase()


def _verified(directory: str) -> int:
    checkpoint.verify(directory)
    return 0


def position(found: state.Resumed, data: str) -> Position:
    """Where a phase begins that reads the data with this fingerprint."""
    progress, run = found.progress, found.run
    same = run.data == data
    places = run.begun.places if same else {**run.begun.places, **(progress.places or {run.data: progress.samples})}
    return Position(
        step=progress.step,
        sample=progress.samples if same else places.get(data, 0),
        places=places,
        updates=progress.updates,
        tokens=progress.tokens,
        skipped=progress.skipped,
    )


def beginning(found: state.Resumed, config: PretrainConfig, info: DatasetInfo, pieces: str) -> Beginning:
    """The model that the phase goes on with: the checkpoint's.

    Args:
        found: the trunk, or this phase's own checkpoint.
        pieces: the dataset's tokenizer directory.

    Raises:
        UsageError: model or dataset are not such that the optimizer's state can go on.
    """
    with checkpoint.held(found.path) as directory:
        said = checkpoint.described(directory)
        if config.model is not None:
            check_same_shape(config.model, said, found.path)
        model = _model(said, info, pieces)
    return Beginning(model=model, state=found.weights)


def optimizer(found: state.Resumed, wanted: str | None) -> str:
    """The optimizer that the phase goes on with: the trunk's.

    Raises:
        UsageError: another one was asked for.
    """
    before = str(found.run.config.get("optimizer"))
    if wanted not in (None, before):
        raise UsageError(
            f"optimizer ({wanted}) is not that of {found.path} ({before}), whose state it cannot go on with; leave it out, or"
            " begin a new training from the weights with checkpoint"
        )
    return before


def _model(said: Loaded, info: DatasetInfo, pieces: str) -> ModelConfig:
    remedy = f"make the dataset with --tokenizer {said.tokenizer}"
    wanted = check_vocabulary(tokenizer.load(said.tokenizer), tokenizer.load(pieces), said.path, remedy)
    if len(wanted) > said.model.vocab_size:
        raise UsageError(
            f"the dataset's tokenizer has {len(wanted):,} pieces, {said.path} knows {said.model.vocab_size:,}, and the optimizer's"
            " state cannot grow; begin a new training from the weights with checkpoint"
        )
    return for_dataset(said.model, info)


def check_schedule(config: PretrainConfig, begun: Position) -> None:
    """Refuse steps beyond the end of a schedule that phases share.

    Raises:
        UsageError: there are.
    """
    if config.last_step is None or config.schedule_steps is None:
        return
    last = begun.step + config.last_step
    if last > config.schedule_steps:
        raise UsageError(
            f"schedule_steps ({config.schedule_steps}) ends before step {last}, the last of this phase ({config.last_step} after"
            f" step {begun.step}); use {last} or more in all phases, or leave it out for a schedule of this phase's own"
        )


def check_optimizer(found: state.Resumed, model: nn.Module, optimizer: str) -> None:
    """Refuse to train a parameter that the optimizer has no state of.

    Raises:
        UsageError: there is one.
    """
    if found.progress.updates == 0:
        return
    for name, _, key in optimizer_states(model, optimizer_kind(optimizer)):
        if f"{name}/{key}" not in found.optimizer:
            raise UsageError(
                f"{found.path} has no optimizer state of {name}, which was not trained there; use the objectives of the phase before,"
                " or begin a new training from the weights with checkpoint"
            )
