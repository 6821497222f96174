"""Phases of a pretraining: continue with a checkpoint's weights, optimizer and counters.

BERT trains at length 128 and then at 512 (Devlin et al., 2019, appendix A.2); a decay branches from
a trunk of constant learning rate (Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond
Fixed Training Durations", 2024). Step numbers continue, and with them Adam's bias correction, log
lines and milestones. A dataset that an earlier phase has read continues at its next sample, alone
or in a mixture; other datasets start at their first.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from cloze.core import storage
from cloze.core.artifacts import artifact, checkpoint_files, checkpoints
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.families.config import for_dataset
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.optimizers import optimizer_kind
from cloze.model.train.optimizers.parameters import optimizer_states
from cloze.model.train.resume import state
from cloze.model.train.resume.initialization import InitialModel, check_vocabulary, saved_model
from cloze.model.train.spec.interfaces import StartPosition
from cloze.pipeline import tokenizer
from cloze.pipeline.dataset.schema import DatasetInfo


def check_inputs(inputs: Mapping[str, str]) -> None:
    """Check that a phase starts from one place.

    Raises:
        UsageError: both `continue` and `checkpoint` are given.
    """
    if "continue" in inputs and "checkpoint" in inputs:
        raise UsageError(
            f"continue ({inputs['continue']}) and checkpoint ({inputs['checkpoint']}) exclude each "
            f"other: continue keeps the optimizer and the step numbers, checkpoint starts again "
            f"from the weights; leave one out"
        )


def load_trunk(path: str, world: World, build: BuildContext) -> state.ResumeState:
    """Read the training to continue: an artifact of pretrain or one of its checkpoints.

    Every rank must call it. The checkpoint is pinned until `build` ends.

    Raises:
        UsageError: `path` is neither, or is an unfinished training.
        DataError: there is no checkpoint, or it is damaged.
    """
    if checkpoints.complete_steps(path) and not artifact.is_artifact(path):
        raise UsageError(
            f"continue ({path}) is not finished; wait for it, or name one of its checkpoints "
            f"({checkpoints.STEPS}/step-…)"
        )
    # Its tensors are read later.
    directory = build.cleanup.enter_context(checkpoint.resolve_pinned(path))
    if not storage.exists(storage.join(directory, checkpoint_files.TRAINING)):
        raise UsageError(
            f"continue ({path}) has weights without a training's state; start a new training "
            f"from them with checkpoint"
        )
    world.decide_on_rank_zero(lambda: _verified(directory))
    return state.read(directory).as_phase()


def _verified(directory: str) -> int:
    checkpoint_files.verify(directory)
    return 0


def start_position(trunk: state.ResumeState, data: str) -> StartPosition:
    """Return the start position of a phase that reads the data with this fingerprint."""
    progress, run = trunk.progress, trunk.run
    same_data = run.data == data
    next_samples = run.start_position.places
    if not same_data:
        # By fingerprint: a mixture has a place for each dataset, one dataset alone only `samples`.
        next_samples = {**next_samples, **(progress.places or {run.data: progress.samples})}
    return StartPosition(
        step=progress.step,
        sample=progress.samples if same_data else next_samples.get(data, 0),
        places=next_samples,
        updates=progress.updates,
        tokens=progress.tokens,
        skipped=progress.skipped,
    )


def initial_model(
    trunk: state.ResumeState, config: PretrainConfig, info: DatasetInfo, pieces: str
) -> InitialModel:
    """Return the model that the phase continues: the checkpoint's.

    Args:
        trunk: the trunk, or this phase's own checkpoint.

    Raises:
        UsageError: the model or dataset does not fit the optimizer state.
    """
    with checkpoint.resolve_pinned(trunk.path) as directory:
        metadata = checkpoint.load_metadata(directory)
        _check_dataset(metadata, pieces)
        model = for_dataset(saved_model(config.model, metadata, trunk.path), info)
    return InitialModel(model=model, state=trunk.weights, untrained=metadata.untrained)


def optimizer(trunk: state.ResumeState, requested: str | None) -> str:
    """Return the optimizer that the phase continues: the trunk's.

    Raises:
        UsageError: `requested` is a different optimizer.
    """
    previous = str(trunk.run.config.get("optimizer"))
    if requested not in (None, previous):
        raise UsageError(
            f"optimizer ({requested}) is not that of {trunk.path} ({previous}), whose state it "
            f"cannot continue with; leave it out, or start a new training from the weights with "
            f"checkpoint"
        )
    return previous


def _check_dataset(loaded: LoadedCheckpoint, pieces: str) -> None:
    remedy = f"make the dataset with --tokenizer {loaded.tokenizer}"
    tokens = check_vocabulary(
        tokenizer.load(loaded.tokenizer), tokenizer.load(pieces), loaded.path, remedy
    )
    if len(tokens) > loaded.model.vocab_size:
        raise UsageError(
            f"the dataset's tokenizer has {len(tokens):,} pieces, {loaded.path} knows "
            f"{loaded.model.vocab_size:,}, and the optimizer's state cannot grow; begin a new "
            f"training from the weights with checkpoint"
        )


def check_schedule(config: PretrainConfig, start_position: StartPosition) -> None:
    """Check that the phase ends within a schedule that phases share.

    Raises:
        UsageError: the phase ends after the schedule.
    """
    if config.phase_steps is None or config.schedule_steps is None:
        return
    last_step = start_position.step + config.phase_steps
    if last_step > config.schedule_steps:
        raise UsageError(
            f"schedule_steps ({config.schedule_steps}) ends before step {last_step}, the last of "
            f"this phase ({config.phase_steps} after step {start_position.step}); use {last_step} "
            f"or more in all phases, or leave it out for a schedule of this phase's own"
        )


def check_optimizer(trunk: state.ResumeState, model: nn.Module, optimizer: str) -> None:
    """Check that the optimizer state covers every trained parameter.

    Raises:
        UsageError: a parameter has no optimizer state.
    """
    if trunk.progress.updates == 0:
        return
    for name, _, key in optimizer_states(model, optimizer_kind(optimizer)):
        if f"{name}/{key}" not in trunk.optimizer:
            raise UsageError(
                f"{trunk.path} has no optimizer state of {name}, which was not trained there; use "
                f"the objectives of the phase before, or begin a new training from the weights "
                f"with checkpoint"
            )
