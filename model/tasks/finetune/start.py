"""What fine-tuning starts from: a pretrained checkpoint, its shape alone, or a preset's shape and a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from model import checkpoint
from model.families.config import ModelConfig
from model.families.presets import model_config
from model.tasks.finetune.config import FinetuneConfig
from model.train.distributed import World
from pipeline import tokenizer
from pipeline.core import storage
from pipeline.core.errors import UsageError
from pipeline.core.stage import Build
from pipeline.dataset.schema import DatasetInfo
from pipeline.tokenizer.tokenizer import Tokenizer

POOLING = "classifier_pooling"  # in the config of families that leave it open
TOKENIZER = "tokenizer"  # below the build's scratch, where there is no checkpoint to take it from


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What fine-tuning starts from.

    Attributes:
        state: weights by our names; None: random ones.
        tokenizer: a directory that holds `pieces`.
    """

    model: ModelConfig
    state: Mapping[str, Tensor] | None = field(repr=False)
    tokenizer: str
    pieces: Tokenizer
    dataset: DatasetInfo | None


def starting_point(config: FinetuneConfig, build: Build, world: World) -> Start:
    """The checkpoint that the inputs name; with from_scratch its shape alone, or a preset's shape and a vocabulary.

    Raises:
        UsageError: an input is missing, or max_length exceeds the model's positions.
        DataError: the checkpoint is missing or damaged.
    """
    found = _found(config, build, world)
    most = found.model.max_position_embeddings
    if config.max_length is not None and config.max_length > most:
        raise UsageError(
            f"max_length ({config.max_length}) exceeds the model's max_position_embeddings ({most}); use {most} or less"
        )
    return found


def _found(config: FinetuneConfig, build: Build, world: World) -> Start:
    path = build.inputs.get("checkpoint")
    if path is not None:
        loaded = checkpoint.load_input(build, path)
        return Start(
            model=_settled(loaded.model, config),
            state=None if config.from_scratch else loaded.state,
            tokenizer=loaded.tokenizer,
            pieces=tokenizer.load(loaded.tokenizer),
            dataset=loaded.dataset,
        )
    if not config.from_scratch:
        raise UsageError("finetune needs a checkpoint (found none); name one that `cloze pretrain` made, or set from_scratch")
    vocabulary = build.inputs.get("vocab")
    if config.model is None or vocabulary is None:
        missing = "model" if config.model is None else "vocab"
        raise UsageError(
            f"finetune from scratch without a checkpoint needs {missing} (found none); name a preset and a vocabulary"
        )
    pieces = tokenizer.load(vocabulary)
    saved = storage.join(build.scratch, TOKENIZER)
    if world.first:
        pieces.save(saved)
    shape = model_config(config.model, vocab_size=pieces.vocab_size, pad_token_id=pieces.special.pad)
    return Start(model=_settled(shape, config), state=None, tokenizer=saved, pieces=pieces, dataset=None)


def _settled(model: ModelConfig, config: FinetuneConfig) -> ModelConfig:
    """The model with what fine-tuning says of it.

    Raises:
        UsageError: its family leaves that not open.
    """
    changes: dict[str, Any] = {}
    if config.bilstm:
        if "bilstm" not in type(model).model_fields:
            raise UsageError(f"bilstm (true) is for left-to-right encoders, this one is {model.family}; leave it out")
        changes["bilstm"] = True
    if config.pooling is not None:
        if POOLING not in type(model).model_fields:
            raise UsageError(
                f"pooling ({config.pooling}) is not for models of the family {model.family}, whose classifiers read one token's"
                " state; leave it out"
            )
        changes[POOLING] = config.pooling
    return model.model_copy(update=changes) if changes else model
