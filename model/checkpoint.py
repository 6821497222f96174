"""Checkpoints: written by pretraining and fine-tuning; read by evaluation, export and inference.

A checkpoint is a directory. It is complete if and only if its `checkpoint.json` exists. That file
is written last and contains the size and sha256 of every other file:

 model.safetensors   the weights in fp32 under Cloze's parameter names; a tied decoder is
                     stored once. With n ranks: model-00001-of-0000n.safetensors and so on,
                     whole tensors in each (`cloze.model.tensors`)
 config.json         model, heads, task, dataset, step: everything needed to build the model
 tokenizer/          a Hugging Face tokenizer directory
 training/           (pretraining, and while fine-tuning runs) the state that `resume` needs

`heads` has one entry per head: `{"masked_lm": {}, "pair": {"num_labels": 2}}` after pretraining,
`{"classifier": {"num_labels": n}}` after fine-tuning for a sentence task (see `Task.heads`). `task`
is null or at least `{"name": …}`, and has `"labels": [name of label 0, …]` if the outputs have
names. `untrained` names the modules, such as `pair` and `pooler`, with random weights that no
training has changed. Pickles are never read.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NotRequired, TypedDict, Unpack, cast

import torch
from pydantic import ValidationError

from cloze.core import storage
from cloze.core.artifacts import artifact, checkpoint_files, checkpoints
from cloze.core.artifacts.artifact import FileEntry
from cloze.core.artifacts.checkpoints import COMPLETE, is_checkpoint
from cloze.core.errors import DataError, NotFiniteWeightsError, UsageError
from cloze.core.plugins import PluginError
from cloze.core.stages.stage import BuildContext
from cloze.model.families.config import HEAD_OF, ModelConfig
from cloze.model.families.models import without_training_modules
from cloze.model.families.registry import parse_model
from cloze.model.tensors import PICKLE, PICKLES, LazyTensors, to_saved_dtype, write_tensors
from cloze.pipeline.dataset.schema import DatasetInfo
from cloze.pipeline.tokenizer import load as load_tokenizer
from cloze.pipeline.tokenizer.special import SpecialTokens
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer"
PIN_ATTEMPTS = 5
NAME_ONE = "name a checkpoint, or an artifact of pretrain or finetune"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """A checkpoint in memory.

    Attributes:
        tokenizer: the tokenizer directory in `path`.
        datasets, untrained: see `Metadata`.
        state: parameter name -> fp32 tensor on the CPU.
    """

    path: str
    model: ModelConfig
    heads: Mapping[str, Any]
    task: Mapping[str, Any] | None
    dataset: DatasetInfo | None
    step: int
    tokenizer: str
    datasets: Sequence[Mapping[str, Any]] = ()
    untrained: Sequence[str] = ()
    state: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)

    @property
    def trained_heads(self) -> Mapping[str, Any]:
        """The heads without those that were never trained."""
        return {name: value for name, value in self.heads.items() if name not in self._random}

    @property
    def _random(self) -> set[str]:
        """The heads of `untrained`, and its pooler."""
        return {HEAD_OF.get(module, module) for module in self.untrained}

    def require_trained(self, *heads: str) -> None:
        """Check that none of these heads, or `pooler`, has random weights.

        Raises:
            UsageError: one was, so it would answer from random weights.
        """
        for head in heads:
            if head in self._random:
                raise UsageError(
                    f"{head} of {self.path} was never trained, so its weights are random; train it "
                    f"(`cloze pretrain --checkpoint`), or import a directory that has it"
                )


class Metadata(TypedDict):
    """Contents of a checkpoint besides its weights."""

    model: ModelConfig
    tokenizer: str | Tokenizer
    """A tokenizer to save, or a directory to copy, such as a dataset's `tokenizer/`."""
    heads: Mapping[str, Any]
    task: NotRequired[Mapping[str, Any] | None]
    dataset: NotRequired[DatasetInfo | None]
    datasets: NotRequired[Sequence[Mapping[str, Any]]]
    """Of a mixture: name, share, rows, tokens and epochs of each dataset."""
    step: NotRequired[int]
    """Default: 0."""
    untrained: NotRequired[Sequence[str]]
    """Modules with random weights; default: none."""


def metadata_of(saved: object, **changes: Any) -> Metadata:
    """Return those attributes of `saved` that describe a checkpoint, with changes."""
    names = [name for name in Metadata.__annotations__ if hasattr(saved, name)]
    return cast("Metadata", {name: getattr(saved, name) for name in names} | changes)


def save_weights(
    directory: str, *, state: Mapping[str, torch.Tensor], **metadata: Unpack[Metadata]
) -> None:
    """Write weights, config and tokenizer into a new, incomplete checkpoint directory.

    `finalize` completes it.

    Args:
        directory: output directory; leftovers of an interrupted save are removed first.
        state: parameter name -> tensor of any dtype and device; floating-point tensors are stored
            as fp32.
    """
    clear(directory)
    write_tensors(
        storage.join(directory, WEIGHTS),
        {name: to_saved_dtype(tensor) for name, tensor in state.items()},
    )
    write_metadata(directory, **metadata)


def clear(directory: str) -> None:
    """Remove the checkpoint directory, with the leftovers of an interrupted save."""
    # First, so that a half-removed directory does not pass for a checkpoint.
    storage.remove_file(storage.join(directory, COMPLETE))
    storage.remove(directory)


def write_metadata(directory: str, **metadata: Unpack[Metadata]) -> None:
    """Write all of a checkpoint except its weights: config.json and tokenizer."""
    task, dataset = metadata.get("task"), metadata.get("dataset")
    datasets, untrained = metadata.get("datasets", ()), metadata.get("untrained", ())
    config = {
        "format": checkpoint_files.FORMAT,
        "model": metadata["model"].model_dump(mode="json"),
        "heads": dict(metadata["heads"]),
        "task": None if task is None else dict(task),
        "dataset": None if dataset is None else asdict(dataset),
        "step": metadata.get("step", 0),
        **({"datasets": [dict(entry) for entry in datasets]} if datasets else {}),
        **({"untrained": list(untrained)} if untrained else {}),
    }
    _write_json(storage.join(directory, CONFIG), config)
    tokenizer, target = metadata["tokenizer"], storage.join(directory, TOKENIZER)
    if isinstance(tokenizer, str):
        copy_files(tokenizer, target)
    else:
        tokenizer.save(target)


def finalize(
    directory: str,
    known: Iterable[FileEntry] = (),
    written: Mapping[str, tuple[str, int]] | None = None,
) -> None:
    """Complete the checkpoint: write `checkpoint.json` with the hash of every file, atomically.

    Args:
        known: files whose hashes are known from writing.
        written: sha256 and size of others (`storage.hashing_written`); what is left is read.
    """
    entries = {entry.path: entry for entry in known}
    names = [
        name
        for name in storage.list_files(directory)
        if name not in (COMPLETE, *entries)
        and not name.rpartition("/")[2].startswith(storage.TEMPORARY)  # of another launch
    ]
    entries |= {entry.path: entry for entry in artifact.hash_files(directory, names, known=written)}
    files = [
        {"path": name, "size": entries[name].size, "sha256": entries[name].sha256}
        for name in sorted(entries)
    ]
    content = {"format": checkpoint_files.FORMAT, "files": files}
    _write_json(storage.join(directory, COMPLETE), content)


def load(path: str) -> LoadedCheckpoint:
    """Read and verify the checkpoint that `path` resolves to, except its training state.

    Raises:
        DataError: no checkpoint exists, a file is damaged, a weight is not finite, or the training
            has removed it.
    """
    with resolve_pinned(path) as directory:
        checkpoint_files.verify(directory, training=False)
        with weights(directory) as tensors:
            state = without_training_modules(tensors)
        check_finite(state, directory)
        return replace(load_metadata(directory), state=state)


def load_with_tokenizer(path: str) -> tuple[LoadedCheckpoint, Tokenizer]:
    """Load the checkpoint at `path` and its tokenizer; raises as `load`."""
    with resolve_pinned(path) as directory:
        loaded = load(directory)
        return loaded, load_tokenizer(loaded.tokenizer)


def check_finite(state: Mapping[str, torch.Tensor], where: str) -> None:
    """Raise NotFiniteWeightsError if a weight is NaN or infinite; the message names it, `where`."""
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise NotFiniteWeightsError(
                f"{where}: {name} has values that are not finite; use another save of the model"
            )


def weights(directory: str) -> LazyTensors:
    """Open the weights of the complete checkpoint at `directory`; each tensor is read on access.

    Raises:
        DataError: a file is missing or damaged.
    """
    return LazyTensors.open(directory, WEIGHTS)


def load_input(build: BuildContext, path: str) -> LoadedCheckpoint:
    """Load the checkpoint at `path` and pin it until `build` ends: its tokenizer is read later."""
    return load(build.cleanup.enter_context(resolve_pinned(path)))


def load_metadata(directory: str) -> LoadedCheckpoint:
    """Read everything except the weights of the complete checkpoint at `directory`.

    Raises:
        DataError: config.json is missing or damaged.
        PluginError: the family is of a package that is not installed.
    """
    name = storage.join(directory, CONFIG)
    try:
        content = json.loads(storage.read_text(name))
        model, dataset = parse_model(content["model"]), content["dataset"]
        if dataset is not None:
            special = SpecialTokens(**dataset["special"])
            dataset = DatasetInfo(**{**dataset, "special": special})
        heads, task, step = dict(content["heads"]), content["task"], int(content["step"])
    except PluginError:
        raise
    except (ValueError, TypeError, KeyError, ValidationError, UsageError) as error:
        raise DataError(f"{name} is damaged ({error}); use another checkpoint") from error
    return LoadedCheckpoint(
        path=directory,
        model=model,
        heads=heads,
        task=task,
        dataset=dataset,
        step=step,
        datasets=tuple(content.get("datasets", ())),
        untrained=tuple(content.get("untrained", ())),
        tokenizer=storage.join(directory, TOKENIZER),
    )


@contextlib.contextmanager
def resolve_pinned(path: str) -> Iterator[str]:
    """Resolve `path` to a checkpoint directory and protect it from pruning inside the block.

    Raises:
        DataError: no checkpoint exists, or the training has removed it.
    """
    with contextlib.ExitStack() as stack:
        for attempt in range(PIN_ATTEMPTS):
            directory = resolve(path)
            try:
                stack.enter_context(checkpoints.pinned(directory))
                break
            # Removed since `resolve`: an unfinished training has a newer checkpoint by now.
            except DataError:
                if directory == path or attempt + 1 == PIN_ATTEMPTS:
                    raise
        yield directory


def resolve(path: str) -> str:
    """Return the checkpoint directory that `path` refers to.

    Args:
        path: a checkpoint directory; a finished pretrain or finetune artifact; or an unfinished
            one, whose newest complete and undamaged checkpoint is taken.

    Raises:
        DataError: no checkpoint exists. A missing checkpoint never means training from scratch.
    """
    if is_checkpoint(path):
        return path
    if path.endswith(PICKLES):
        raise DataError(f"{path} is {PICKLE}")
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; {_instead_of(path)}")
    if artifact.is_artifact(path):
        manifest = artifact.read_manifest(path)
        checkpoint_name = manifest.summary.get("checkpoint")
        if not checkpoint_name:
            raise DataError(
                f"{path} is an artifact of {manifest.stage} and has no checkpoint; name one of "
                f"pretrain or finetune"
            )
        directory = storage.join(path, str(checkpoint_name))
        if not is_checkpoint(directory):
            raise DataError(
                f"{directory} is incomplete or gone ({COMPLETE} is missing); make {path} again"
            )
        return directory
    return _newest(path)


def _newest(path: str) -> str:
    """Return the newest undamaged checkpoint of the unfinished training at `path`.

    The training may still be running and prune checkpoints.
    """
    candidates: list[str] = []
    while (complete := checkpoints.complete_steps(path)) != candidates:
        candidates = complete
        for directory in reversed(candidates):
            try:
                with checkpoints.pinned(directory):
                    checkpoint_files.verify(directory)
            except DataError as error:
                if is_checkpoint(directory):
                    log.warning("SKIPPING A DAMAGED CHECKPOINT: %s", error)
                continue
            return directory
    if candidates:
        raise DataError(
            f"{path} has {len(candidates)} checkpoints, all of them damaged; start again in "
            f"another directory"
        )
    raise DataError(f"{path} has no complete checkpoint; {_what_it_is(path)}")


def _instead_of(path: str) -> str:
    """Return advice on which path to give instead of the missing `path`."""
    steps, _, name = path.rstrip("/").rpartition("/")
    training = steps.removesuffix(f"/{checkpoints.STEPS}")
    directories = checkpoints.complete_steps(training)
    if training == steps or checkpoints.parse_step(name) < 0 or not directories:
        return NAME_ONE
    available = ", ".join(str(checkpoints.parse_step(directory)) for directory in directories)
    return (
        f"the training keeps those of step {available}: name one, or have this one kept "
        f"(milestones) and train again"
    )


def _what_it_is(path: str) -> str:
    if storage.is_dir(storage.join(path, "_status")):
        return f"it is a run: name its training, such as {storage.join(path, 'pretrain')}"
    names = storage.list_files(path)
    if any(name.endswith((WEIGHTS, ".safetensors.index.json")) for name in names):
        return (
            "it may be a Hugging Face directory (`cloze import` converts it), or a save that was "
            "interrupted"
        )
    pickles = (f"its {name} is {PICKLE}" for name in names if name.endswith(PICKLES))
    return next(pickles, NAME_ONE)


def copy_files(source: str, target: str) -> None:
    """Copy every file below `source` to `target`.

    Raises:
        DataError: `source` has no files.
    """
    names = storage.list_files(source)
    if not any(names):  # "": a file
        raise DataError(f"{source} contains no tokenizer files; name a tokenizer directory")
    for name in names:
        content = storage.read_at_once(storage.join(source, name))
        storage.write_bytes(storage.join(target, name), content)


def _write_json(path: str, content: Mapping[str, Any]) -> None:
    storage.write_bytes(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
