"""Checkpoints: what pretraining and fine-tuning write, and what fine-tuning, evaluation, export and inference read.

A checkpoint is a directory that is complete if and only if its `checkpoint.json` exists; that file is written last and
holds the size and sha256 of every other one:

    model.safetensors   the weights in fp32 under our parameter names; the tied decoder is stored once. Of a training that runs on n
                        ranks, model-00001-of-0000n.safetensors and so on, whole tensors in each (`model.tensors`)
    config.json         model, heads, task, dataset, step: all that is needed to build the model again
    tokenizer/          a Hugging Face tokenizer directory
    training/           (of pretraining, and while fine-tuning runs) what `resume` needs; the trainer's own
    checkpoint.json

`heads` has one entry a head: `{"masked_lm": {}, "pair": {"num_labels": 2}}` after pretraining,
`{"classifier": {"num_labels": n}}` after fine-tuning for a sentence task (see `Task.heads` for others). `task` is null, or at least
`{"name": …}`; where outputs have names, with `"labels": [name of label 0, …]`.
No pickle is ever read: weights travel as safetensors.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from model.families.config import ModelConfig
from model.families.presets import parse_model
from model.tensors import PICKLE, PICKLES, Tensors, write_tensors
from pipeline.core import artifact, checkpoints, storage
from pipeline.core.artifact import FileEntry
from pipeline.core.checkpoints import COMPLETE, is_checkpoint
from pipeline.core.errors import DataError, UsageError
from pipeline.core.stage import Build
from pipeline.dataset.schema import DatasetInfo
from pipeline.tokenizer.special import SpecialTokens

if TYPE_CHECKING:
    from pipeline.tokenizer.tokenizer import Tokenizer

FORMAT = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer"
TRAINING = "training"
HOLD_TRIES = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checkpoint in memory. `path` is the checkpoint directory, `tokenizer` a directory in it."""

    path: str
    model: ModelConfig
    heads: Mapping[str, Any]
    task: Mapping[str, Any] | None
    dataset: DatasetInfo | None
    step: int
    tokenizer: str
    datasets: Sequence[Mapping[str, Any]] = ()  # of a mixture: name, share, rows, tokens and epochs of each
    state: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)  # parameter name -> fp32 tensor on the CPU


def save_weights(
    directory: str,
    *,
    model: ModelConfig,
    state: Mapping[str, torch.Tensor],
    tokenizer: str | Tokenizer,
    heads: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
    dataset: DatasetInfo | None = None,
    datasets: Sequence[Mapping[str, Any]] = (),
    step: int = 0,
) -> None:
    """Write weights, config and tokenizer into a new checkpoint directory. It is incomplete until `complete` is called.

    Args:
        directory: where; whatever an interrupted save left there is removed first.
        state: parameter name -> tensor of any dtype and device; floating-point ones are stored as fp32.
        tokenizer: one to save, or a directory whose files are copied, such as a dataset's `tokenizer/`.
    """
    clear(directory)
    write_tensors(storage.join(directory, WEIGHTS), {name: master(tensor) for name, tensor in state.items()})
    describe(directory, model=model, tokenizer=tokenizer, heads=heads, task=task, dataset=dataset, datasets=datasets, step=step)


def clear(directory: str) -> None:
    """Remove the checkpoint directory, and what an interrupted save left there."""
    storage.remove(storage.join(directory, COMPLETE))  # first: what is being removed is no checkpoint any more
    storage.remove(directory)


def describe(
    directory: str,
    *,
    model: ModelConfig,
    tokenizer: str | Tokenizer,
    heads: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
    dataset: DatasetInfo | None = None,
    datasets: Sequence[Mapping[str, Any]] = (),
    step: int = 0,
) -> None:
    """Write what a checkpoint is beside its weights; see `save_weights`.

    Args:
        datasets: of a mixture, which ones, and how much of each; see `Loaded`.
    """
    config = {
        "format": FORMAT,
        "model": model.model_dump(mode="json"),
        "heads": dict(heads),
        "task": None if task is None else dict(task),
        "dataset": None if dataset is None else asdict(dataset),
        "step": step,
        **({"datasets": [dict(one) for one in datasets]} if datasets else {}),
    }
    storage.write_bytes(storage.join(directory, CONFIG), _json(config))
    target = storage.join(directory, TOKENIZER)
    if isinstance(tokenizer, str):
        copy_files(tokenizer, target)
    else:
        tokenizer.save(target)


def complete(directory: str, known: Iterable[FileEntry] = ()) -> None:
    """Finish the checkpoint: write `checkpoint.json`, last and atomically, with the hash of every file.

    Args:
        known: files that their writers have hashed; the others are read for it.
    """
    entries = {entry.path: entry for entry in known}
    names = [name for name in storage.list_files(directory) if name != COMPLETE and name not in entries]
    entries |= {entry.path: entry for entry in artifact.hash_files(directory, names)}
    files = [{"path": name, "size": entries[name].size, "sha256": entries[name].sha256} for name in sorted(entries)]
    storage.write_bytes(storage.join(directory, COMPLETE), _json({"format": FORMAT, "files": files}))


def verify(directory: str, *, training: bool = True) -> None:
    """Compare every file of a complete checkpoint with its recorded size and sha256.

    Args:
        training: false leaves out the files that only `resume` reads, which are the larger part.

    Raises:
        DataError: the checkpoint is incomplete, or a file is missing or changed; the message names it.
    """
    name = storage.join(directory, COMPLETE)
    if not storage.exists(name):
        raise DataError(f"{directory} holds no complete checkpoint ({COMPLETE} is missing); use another checkpoint")
    try:
        content = json.loads(storage.read_text(name))
        found_format = content["format"]
        recorded = {str(entry["path"]): (str(entry["sha256"]), int(entry["size"])) for entry in content["files"]}
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{name} is damaged ({error!r}); use another checkpoint") from error
    if found_format != FORMAT:
        raise DataError(f"{name} has format {found_format}, this program reads {FORMAT}; use the Cloze that made it")
    for path, (digest, size) in sorted(recorded.items()):
        if not training and path.startswith(TRAINING + "/"):
            continue
        file = storage.join(directory, path)
        if not storage.exists(file):
            raise DataError(f"{file} is missing from the checkpoint; use another checkpoint")
        found_digest, found_size = storage.sha256(file)
        if found_size != size:
            raise DataError(f"{file} has {found_size} bytes, {COMPLETE} says {size}; use another checkpoint")
        if found_digest != digest:
            raise DataError(f"{file} has sha256 {found_digest[:12]}…, {COMPLETE} says {digest[:12]}…; use another checkpoint")


def load(path: str) -> Loaded:
    """Read the checkpoint at `path` (anything that `resolve` accepts) after verifying its files, but for those of `resume`.

    Raises:
        DataError: there is none, a file of it is damaged, or the training that made it has removed it.
    """
    with held(path) as directory:
        verify(directory, training=False)
        with weights(directory) as found:
            return replace(described(directory), state=dict(found))


def weights(directory: str) -> Tensors:
    """The weights of the complete checkpoint at `directory`, each read when it is asked for.

    Raises:
        DataError: a file is missing or damaged.
    """
    return Tensors.open(directory, WEIGHTS)


def load_input(build: Build, path: str) -> Loaded:
    """`load`, and hold the checkpoint as long as `build` goes on, for its tokenizer is read later."""
    return load(build.cleanup.enter_context(held(path)))


def described(directory: str) -> Loaded:
    """What the complete checkpoint at `directory` says of itself: all but its weights, which are left empty.

    Raises:
        DataError: its config.json is missing or damaged.
    """
    name = storage.join(directory, CONFIG)
    try:
        content = json.loads(storage.read_text(name))
        model = parse_model(content["model"])
        dataset = None if content["dataset"] is None else _dataset(content["dataset"])
        heads, task, step = dict(content["heads"]), content["task"], int(content["step"])
    except (ValueError, TypeError, KeyError, ValidationError, UsageError) as error:
        raise DataError(f"{name} is damaged ({error}); use another checkpoint") from error
    return Loaded(
        path=directory,
        model=model,
        heads=heads,
        task=task,
        dataset=dataset,
        step=step,
        datasets=tuple(content.get("datasets", ())),
        tokenizer=storage.join(directory, TOKENIZER),
    )


@contextlib.contextmanager
def held(path: str) -> Iterator[str]:
    """The checkpoint directory that `path` stands for (see `resolve`), which its training leaves alone inside the block.

    Raises:
        DataError: there is none, or its training has removed it.
    """
    with contextlib.ExitStack() as hold:
        for attempt in range(HOLD_TRIES):
            directory = resolve(path)
            try:
                hold.enter_context(checkpoints.held(directory))
                break
            except DataError:  # removed in between: of an unfinished training there is a newer one by now
                if directory == path or attempt + 1 == HOLD_TRIES:
                    raise
        yield directory


def resolve(path: str) -> str:
    """The checkpoint directory that `path` stands for.

    Args:
        path: a checkpoint directory; a finished pretrain or finetune artifact, which names its checkpoint; or an
            unfinished one, of which the newest complete and undamaged checkpoint counts.

    Raises:
        DataError: there is none. A missing checkpoint is never taken for a start from nothing.
    """
    if is_checkpoint(path):
        return path
    if path.endswith(PICKLES):
        raise DataError(f"{path} is {PICKLE}")
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; {_instead_of(path)}")
    if artifact.is_artifact(path):
        manifest = artifact.read_manifest(path)
        named = manifest.summary.get("checkpoint")
        if not named:
            raise DataError(
                f"{path} is an artifact of {manifest.stage} and has no checkpoint; name one of pretrain or finetune"
            )
        directory = storage.join(path, str(named))
        if not is_checkpoint(directory):
            raise DataError(f"{directory} is incomplete or gone ({COMPLETE} is missing); make {path} again")
        return directory
    return _newest(path)


def _newest(path: str) -> str:
    """The newest undamaged checkpoint of the unfinished training at `path`, which may go on meanwhile."""
    candidates: list[str] = []
    while (found := checkpoints.complete_steps(path)) != candidates:
        candidates = found
        for directory in reversed(candidates):
            try:
                with checkpoints.held(directory):
                    verify(directory)
            except DataError as error:
                if is_checkpoint(directory):
                    log.warning("SKIPPING A DAMAGED CHECKPOINT: %s", error)
                continue
            return directory
    if candidates:
        raise DataError(f"{path} has {len(candidates)} checkpoints, all of them damaged; start again in another directory")
    raise DataError(f"{path} holds no complete checkpoint; {_what_it_is(path)}")


def _instead_of(path: str) -> str:
    """What to name in place of a path that leads nowhere."""
    steps, _, name = path.rstrip("/").rpartition("/")
    kept = checkpoints.complete_steps(steps.removesuffix(f"/{checkpoints.STEPS}"))
    if checkpoints.step_of(name) < 0 or not steps.endswith(f"/{checkpoints.STEPS}") or not kept:
        return "name a checkpoint, or an artifact of pretrain or finetune"
    there = ", ".join(str(checkpoints.step_of(directory)) for directory in kept)
    return f"the training keeps those of step {there}: name one, or have this one kept (milestones) and train again"


def _what_it_is(path: str) -> str:
    names = storage.list_files(path) if storage.is_dir(path) else []
    if any(name.endswith((WEIGHTS, ".safetensors.index.json")) for name in names):
        return "it may be a Hugging Face directory (import it with model.hub.read), or a save that was interrupted"
    if any(name.endswith(PICKLES) for name in names):
        pickle = next(name for name in names if name.endswith(PICKLES))
        return f"its {pickle} is {PICKLE}"
    return "name a checkpoint, or an artifact of pretrain or finetune"


def copy_files(source: str, target: str) -> None:
    """Copy every file below `source` to `target`.

    Raises:
        DataError: `source` has no files.
    """
    names = storage.list_files(source) if storage.is_dir(source) else []
    if not names:
        raise DataError(f"{source} holds no tokenizer files; name a tokenizer directory")
    for name in names:
        with storage.open_input(storage.join(source, name)) as handle:
            storage.write_bytes(storage.join(target, name), handle.read())


def master(tensor: torch.Tensor) -> torch.Tensor:
    """The form that a checkpoint keeps a weight in."""
    return tensor.float() if tensor.is_floating_point() else tensor


def _dataset(values: Mapping[str, Any]) -> DatasetInfo:
    return DatasetInfo(**{**values, "special": SpecialTokens(**values["special"])})


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
