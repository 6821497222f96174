"""A model's embedding and a dataset's tokenizer: whether ids mean the same pieces, and rows for pieces that are new."""

from __future__ import annotations

import torch
from torch import Tensor

from model.checkpoint import Loaded
from model.families.models import per_piece
from pipeline import tokenizer
from pipeline.core.errors import UsageError
from pipeline.tokenizer.tokenizer import Tokenizer

WORD = "encoder.embeddings.word.weight"


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


def grown(loaded: Loaded, wanted: Tokenizer, path: str) -> dict[str, Tensor]:
    """The weights of the checkpoint at `path`, with a row more for each piece of `wanted` that it does not know.

    A new piece begins as the mean of the pieces that the checkpoint's tokenizer cuts it into.

    Raises:
        UsageError: the checkpoint's vocabulary is not the beginning of the dataset's.
    """
    known = tokenizer.load(loaded.tokenizer)
    remedy = f"make the dataset with --tokenizer {loaded.tokenizer}, or with an extension of it"
    new = check_vocabulary(known, wanted, path, remedy)
    state = dict(loaded.state)
    rows = len(state[WORD])  # may be more than there are pieces: some vocabularies are padded
    added = new[rows:]
    if not added:
        return state
    parts = [known.backend.encode(_plain(piece), add_special_tokens=False).ids for piece in added]
    for name in per_piece(loaded.model):
        if name in state:
            rows_added = [state[name][ids].mean(dim=0) if ids else state[name].mean(dim=0) for ids in parts]
            state[name] = torch.cat([state[name], torch.stack(rows_added)])
    return state


def _pieces(found: Tokenizer) -> list[str]:
    names: list[str] = [""] * found.vocab_size
    for piece, number in found.backend.get_vocab(with_added_tokens=True).items():
        names[number] = piece
    return names


def _plain(piece: str) -> str:
    return piece.removeprefix("##").replace("Ġ", " ").replace("▁", " ").strip()
