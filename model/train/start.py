"""Where training starts from: random weights, or those of another checkpoint (further pretraining, domain adaptation).

A checkpoint's vocabulary may be the beginning of the dataset's: then the embedding grows, and a new piece begins as the
mean of the pieces that the old tokenizer cut it into (SciBERT, Beltagy et al., 2019, and Legal-BERT, Chalkidis et al., 2020,
compare such adaptation with training from scratch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model import checkpoint
from model.checkpoint import Loaded
from model.families.config import ModelConfig, for_dataset
from model.families.models import new_model, per_piece
from model.families.presets import model_config
from model.families.pretraining import PretrainingModel
from model.train.teacher import Teacher
from model.train.vocabulary import WORD, grown
from pipeline import tokenizer
from pipeline.core.errors import UsageError
from pipeline.dataset.schema import DatasetInfo

DEFAULT_MODEL = "bert-base"


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
    with checkpoint.held(path) as directory:
        loaded = checkpoint.load(directory)
        if wanted is not None:
            check_same_shape(wanted, loaded, path)
        state = grown(loaded, tokenizer.load(pieces), path)
    model = loaded.model.model_copy(update={"vocab_size": len(state[WORD])})
    return Beginning(model=for_dataset(model, info), state=state)


def build_network(beginning: Beginning) -> tuple[PretrainingModel, list[str]]:
    """The model, and the names of what begins at random although there is a checkpoint.

    Raises:
        UsageError: the encoder's weights are not those of the config.
    """
    network = new_model(beginning.model)
    if beginning.state is None:
        network.load_state_dict(beginning.taken, strict=False)
        return network, []
    own = network.state_dict()
    for name, tensor in own.items():
        if name not in beginning.state:
            if name.startswith("encoder."):
                raise UsageError(f"the checkpoint lacks {name}; use a checkpoint of a {beginning.model.family} model")
            continue
        given = beginning.state[name]  # one after another: they may be on a disk
        if given.shape != tensor.shape:
            raise UsageError(
                f"{name} of the checkpoint has the shape {tuple(given.shape)}, the model's is {tuple(tensor.shape)};"
                " leave model out to take the checkpoint's"
            )
        tensor.copy_(given)
    return network, sorted(own.keys() - beginning.state.keys())


def begin_with_unigrams(network: PretrainingModel, model: ModelConfig, counts: npt.NDArray[np.int64]) -> None:
    """Let the output layers' biases begin as the logarithms of the targets' frequencies, each count raised by one, less their mean.

    What a guesser knows that sees no context is then there before the first step, and the states are for the rest.

    Args:
        counts: how often each piece is a target, int64 [V].

    Raises:
        UsageError: there is no such bias, or nothing is predicted.
    """
    biases = [found for name in per_piece(model) if (found := network.get_parameter(name)).dim() == 1]
    if not biases or not counts.sum():
        lacking = (
            f"the output layer of {model.family} has no bias" if counts.sum() else "the dataset has no masked tokens to count"
        )
        raise UsageError(f"output_bias unigram: {lacking}; leave it out")
    logarithms = torch.from_numpy(np.log(counts + 1.0))
    for bias in biases:
        bias.data.copy_(logarithms - logarithms.mean())


def check_same_shape(wanted: ModelConfig, loaded: Loaded, path: str) -> None:
    """A model that is named beside a checkpoint must be the checkpoint's; dropout and the like may differ."""
    free = {"vocab_size", "pad_token_id", "initializer_range"}
    ours, theirs = wanted.model_dump(), loaded.model.model_dump()
    for name in [*ours, *theirs]:
        if name not in free and not name.endswith("_dropout") and ours.get(name) != theirs.get(name):
            raise UsageError(
                f"{name} ({ours.get(name)}) is not that of the checkpoint {path} ({theirs.get(name)}); leave model out to take the"
                " checkpoint's"
            )
