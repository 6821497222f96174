"""Where training starts from: random weights, or those of another checkpoint (further pretraining, domain adaptation).

A checkpoint's vocabulary may be the beginning of the dataset's: then the embedding grows, and a new piece begins as the
mean of the pieces that the old tokenizer cut it into (SciBERT, Beltagy et al., 2019, and Legal-BERT, Chalkidis et al., 2020,
compare such adaptation with training from scratch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from model import checkpoint
from model.checkpoint import Loaded
from model.families import table as families
from model.families.config import ModelConfig, for_dataset
from model.families.presets import model_config
from model.families.pretraining import PretrainingModel
from pipeline import tokenizer
from pipeline.core.errors import UsageError
from pipeline.dataset.schema import DatasetInfo
from pipeline.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from model.train.teacher import Teacher

DEFAULT_MODEL = "bert-base"
WORD = "encoder.embeddings.word.weight"
PER_PIECE = (
    WORD,
    "masked_lm.bias",
    "span_boundary.bias",
    "lm.bias",
    "generator.masked_lm.bias",
)  # parameters with a row a piece of the vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The model that training begins with.

    Attributes:
        model: its config, vocabulary settled.
        state: weights to begin with, by our names; None: random ones. What it lacks (a head) begins at random.
        taken: where `state` is None: what a student takes over from its teacher.
    """

    model: ModelConfig
    state: Mapping[str, Tensor] | None = field(default=None, repr=False)
    taken: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


def begin(
    wanted: ModelConfig | None, path: str | None, info: DatasetInfo, pieces: str, teacher: Teacher | None = None
) -> Beginning:
    """Settle on a model.

    Args:
        wanted: the config's model; None takes the checkpoint's, or BERT-base where there is none.
        path: a checkpoint, or None.
        info: of the dataset.
        pieces: the dataset's tokenizer directory.
        teacher: gives a student without a checkpoint its first weights.

    Raises:
        UsageError: model, checkpoint and dataset do not fit together.
        DataError: the checkpoint is missing or damaged.
    """
    if path is None:
        model = for_dataset(wanted or model_config(DEFAULT_MODEL), info)
        return Beginning(model=model, taken=teacher.first_weights(model) if teacher else {})
    loaded = checkpoint.load(path)
    if wanted is not None:
        _check_same_shape(wanted, loaded, path)
    state = _fitted(loaded, tokenizer.load(pieces), path)
    model = loaded.model.model_copy(update={"vocab_size": len(state[WORD])})
    return Beginning(model=for_dataset(model, info), state=state)


def build_network(beginning: Beginning) -> tuple[PretrainingModel, list[str]]:
    """The model, and the names of what begins at random although there is a checkpoint.

    Raises:
        UsageError: the encoder's weights are not those of the config.
    """
    network = families.build(beginning.model)
    if beginning.state is None:
        network.load_state_dict(beginning.taken, strict=False)
        return network, []
    own = network.state_dict()
    given = {name: tensor for name, tensor in beginning.state.items() if name in own}
    lacking = sorted(own.keys() - given.keys())
    for name, tensor in own.items():
        if name in given and given[name].shape != tensor.shape:
            raise UsageError(
                f"{name} of the checkpoint has the shape {tuple(given[name].shape)}, the model's is {tuple(tensor.shape)};"
                " leave model out to take the checkpoint's"
            )
        if name in lacking and name.startswith("encoder."):
            raise UsageError(f"the checkpoint lacks {name}; use a checkpoint of a {beginning.model.family} model")
    network.load_state_dict(given, strict=False)
    return network, lacking


def _check_same_shape(wanted: ModelConfig, loaded: Loaded, path: str) -> None:
    """A model that is named beside a checkpoint must be the checkpoint's; dropout and the like may differ."""
    free = {"vocab_size", "pad_token_id", "hidden_dropout", "attention_dropout", "initializer_range"}
    ours, theirs = wanted.model_dump(), loaded.model.model_dump()
    for name in [*ours, *theirs]:
        if name not in free and ours.get(name) != theirs.get(name):
            raise UsageError(
                f"{name} ({ours.get(name)}) is not that of the checkpoint {path} ({theirs.get(name)}); leave model out to take the"
                " checkpoint's"
            )


def check_vocabulary(known: Tokenizer, wanted: Tokenizer, path: str, remedy: str) -> list[str]:
    """The pieces of `wanted`, the dataset's tokenizer, which must begin with those of `known`, the one of the model at `path`.

    Raises:
        UsageError: an id means another piece.
    """
    old, new = _pieces(known), _pieces(wanted)
    different = next((place for place, piece in enumerate(old) if place >= len(new) or new[place] != piece), None)
    if different is not None:
        theirs = repr(new[different]) if different < len(new) else "nothing"
        raise UsageError(
            f"the dataset's tokenizer does not fit the embedding of {path}: id {different} is {old[different]!r} there and"
            f" {theirs} in the dataset; {remedy}"
        )
    return new


def _fitted(loaded: Loaded, wanted: Tokenizer, path: str) -> dict[str, Tensor]:
    """The checkpoint's weights, grown to the dataset's vocabulary."""
    known = tokenizer.load(loaded.tokenizer)
    remedy = f"make the dataset with --tokenizer {loaded.tokenizer}, or with an extension of it"
    new = check_vocabulary(known, wanted, path, remedy)
    state = dict(loaded.state)
    rows = len(state[WORD])  # may be more than there are pieces: some vocabularies are padded
    added = new[rows:]
    if not added:
        return state
    parts = [known.backend.encode(_plain(piece), add_special_tokens=False).ids for piece in added]
    for name in PER_PIECE:
        if name in state:
            grown = torch.stack([state[name][ids].mean(dim=0) if ids else state[name].mean(dim=0) for ids in parts])
            state[name] = torch.cat([state[name], grown])
    return state


def _pieces(found: Tokenizer) -> list[str]:
    names: list[str] = [""] * found.vocab_size
    for piece, number in found.backend.get_vocab(with_added_tokens=True).items():
        names[number] = piece
    return names


def _plain(piece: str) -> str:
    return piece.removeprefix("##").replace("Ġ", " ").replace("▁", " ").strip()
