"""The starting point of a fine-tuning: a checkpoint, or a model preset with a vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.registry import model_config
from cloze.model.tasks.finetune.config import FinetuneConfig
from cloze.model.train.distributed import World
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

POOLING = "classifier_pooling"  # config field of families with optional pooling
# Directory in the build's scratch, for a training without a checkpoint.
TOKENIZER = "tokenizer"


def starting_point(
    config: FinetuneConfig, build: BuildContext, world: World
) -> tuple[LoadedCheckpoint, Tokenizer]:
    """Return the input checkpoint, its shape alone (from_scratch), or a preset with a vocabulary.

    Returns:
        The checkpoint, without weights for a training from scratch, and its tokenizer.

    Raises:
        UsageError: an input is missing, or max_length exceeds the model's positions.
        DataError: the checkpoint is missing or damaged.
    """
    path, vocabulary = build.inputs.get("checkpoint"), build.inputs.get("vocab")
    if path is not None:
        loaded = checkpoint.load_input(build, path)
        pieces = tokenizer.load(loaded.tokenizer)
        loaded = replace(loaded, state={} if config.from_scratch else loaded.state)
    elif not config.from_scratch:
        raise UsageError(
            "finetune needs a checkpoint (found none); name one that `cloze pretrain` made, or set "
            "from_scratch"
        )
    elif config.model is None or vocabulary is None:
        missing = "model" if config.model is None else "vocab"
        raise UsageError(
            f"finetune from scratch without a checkpoint needs {missing} (found none); name a "
            f"preset and a vocabulary"
        )
    else:
        pieces = tokenizer.load(vocabulary)
        directory = storage.join(build.scratch, TOKENIZER)
        if world.is_rank_zero:
            pieces.save(directory)
        model = model_config(config.model)
        sizes = model.vocabulary_values(pieces.vocab_size, pieces.special)
        loaded = LoadedCheckpoint(
            path="",
            model=model.model_copy(update=sizes),
            heads={},
            task=None,
            dataset=None,
            step=0,
            tokenizer=directory,
        )
    limit = loaded.model.max_position_embeddings
    if config.max_length is not None and config.max_length > limit:
        raise UsageError(
            f"max_length ({config.max_length}) exceeds the model's max_position_embeddings "
            f"({limit}); use {limit} or less"
        )
    return replace(loaded, model=_with_architecture(loaded.model, config)), pieces


def _with_architecture(model: ModelConfig, config: FinetuneConfig) -> ModelConfig:
    """Return the model config with the fine-tuning's `bilstm` and `pooling`.

    Raises:
        UsageError: the family does not support the option.
    """
    changes: dict[str, Any] = {}
    if config.bilstm:
        if "bilstm" not in type(model).model_fields:
            raise UsageError(
                f"bilstm (true) is for left-to-right encoders, this one is {model.family}; leave "
                f"it out"
            )
        changes["bilstm"] = True
    if config.pooling is not None:
        if POOLING not in type(model).model_fields:
            raise UsageError(
                f"pooling ({config.pooling}) is not for models of the family {model.family}, whose "
                f"classifiers read one token's state; leave it out"
            )
        changes[POOLING] = config.pooling
    return model.model_copy(update=changes) if changes else model
