"""The retriever of a pretraining, and what a pretraining with retrieval starts from.

A checkpoint of a retrieval task is its start; the trained one is saved as such a checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import RETRIEVAL, load_backbone
from cloze.model.objectives.retrieval_options import RetrievalOptions
from cloze.model.tasks.kinds.retrieval import BiEncoder
from cloze.model.tasks.table import task_options
from cloze.model.train.passages import PassageTokens
from cloze.model.train.resume.initialization import check_vocabulary
from cloze.pipeline import tokenizer
from cloze.pipeline.dataset.schema import DatasetInfo

HEAD = "embedding"  # head of a checkpoint trained for retrieval
FEWEST_TOKENS = 16  # of a passage


class Retriever(nn.Module):
    """The trained bi-encoder, and the copies whose vectors are served now and next.

    Attributes:
        interval: number of the interval of steps in which `served` is in use; -1: before the first.
    """

    interval: Tensor

    def __init__(self, current: BiEncoder) -> None:
        super().__init__()
        self.current = current
        for name in ("served", "next"):
            self.add_module(name, copy.deepcopy(current).requires_grad_(False).eval())
        self.register_buffer("interval", torch.tensor(-1))

    def train(self, mode: bool = True) -> Retriever:
        """Set the mode of `current`; a thread may be running the copies, without dropout."""
        self.training = mode
        self.current.train(mode)
        return self

    def move_on(self, interval: int) -> None:
        """Make `next` the served copy, and `current` the next one."""
        for target, source in (("served", "next"), ("next", "current")):
            weights = self.get_submodule(source).state_dict()
            self.get_submodule(target).load_state_dict(weights)
        self.interval.fill_(interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """What a pretraining with retrieval starts from.

    Attributes:
        retriever: bi-encoder as it was tuned, in evaluation mode.
        temperature: divisor of its scores.
        metadata: its checkpoint without weights.
    """

    options: RetrievalOptions
    passages: PassageTokens
    retriever: BiEncoder
    temperature: float
    metadata: checkpoint.LoadedCheckpoint

    def add_to(self, network: nn.Module) -> None:
        """Add the retriever to the network, for training and its checkpoints."""
        network.add_module(RETRIEVAL, Retriever(self.retriever))

    def save(self, path: str, network: nn.Module) -> None:
        """Save the trained retriever as a checkpoint of its own."""
        found, state = self.metadata, network.get_submodule(f"{RETRIEVAL}.current").state_dict()
        checkpoint.save_weights(
            path,
            model=found.model,
            state=state,
            tokenizer=found.tokenizer,
            heads=found.heads,
            task=found.task,
        )
        checkpoint.finalize(path)


def load_retrieval(
    options: RetrievalOptions | None,
    build: BuildContext,
    model: ModelConfig,
    info: DatasetInfo,
    pieces: str,
    names: Sequence[str],
) -> Retrieval | None:
    """Read index and retriever of a pretraining; None without an index.

    Args:
        model: the reader.
        pieces: tokenizer directory of the dataset.
        names: names of the objectives.

    Raises:
        UsageError: an input is missing, or reader, rows, retriever and objectives do not fit.
        DataError: index or retriever is damaged.
    """
    index, path = (build.inputs.get(role) for role in ("index", "retriever"))
    if index is None and path is None and options is None:
        return None
    if index is None or path is None:
        raise UsageError(
            f"retrieval needs an index (found {index}) and a retriever (found {path}); name both "
            f"with --retrieve and --retriever"
        )
    if tuple(names) != ("mlm",) or info.pair_task is not None or info.packed:
        raise UsageError(
            f"retrieval is for objective mlm and rows of one text, not for {', '.join(names)} and "
            f"recipe {info.recipe}; use --objective mlm and `cloze dataset --recipe realm`"
        )
    if build.execution.zero or build.execution.engine not in ("auto", "torch"):
        raise UsageError("retrieval is for engine torch without ZeRO; leave engine and zero out")
    loaded = checkpoint.load_input(build, path)
    if HEAD not in loaded.heads:
        raise UsageError(
            f"retriever ({path}) was not tuned for retrieval; make one: cloze finetune --task "
            f"inverse-cloze"
        )
    own = tokenizer.load(pieces)
    remedy = f"make the dataset with --tokenizer {loaded.tokenizer}"
    check_vocabulary(tokenizer.load(loaded.tokenizer), own, path, remedy)
    longest = min(
        model.max_position_embeddings - info.length, loaded.model.max_position_embeddings - 1
    )
    if longest < FEWEST_TOKENS or info.length > loaded.model.max_position_embeddings:
        raise UsageError(
            f"length ({info.length}) of the rows leaves {longest} of the "
            f"{model.max_position_embeddings} tokens that the model reads to a passage; make the "
            f"dataset with a smaller --length"
        )
    head, task = loaded.heads[HEAD], dict(loaded.task or {})
    backbone = load_backbone(loaded.model, loaded.state)
    tuned: Any = task_options(str(task.get("name", "inverse-cloze")), task.get("options", {}))
    return Retrieval(
        options=options or RetrievalOptions(),
        passages=PassageTokens(
            index,
            own,
            room=info.length - 2,
            longest=longest,
            typed=own.pair_frame.typed and model.type_vocab_size > 1,
        ),
        retriever=BiEncoder(*backbone, head["pooling"], bool(head["normalize"])).eval(),
        temperature=float(tuned.temperature),
        metadata=loaded,
    )
