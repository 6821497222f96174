"""Initial weights of a training: random, from a checkpoint, or from a teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.artifacts import checkpoints
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.families.config import ModelConfig, for_dataset
from cloze.model.families.models import first_weights, load_model, new_model, vocab_parameters
from cloze.model.families.pretraining import PretrainingModel
from cloze.model.families.registry import model_config
from cloze.model.hub.read import read_directory
from cloze.model.layers.batch import Batch
from cloze.model.objectives.distill_options import DistillOptions
from cloze.pipeline import tokenizer
from cloze.pipeline.dataset.schema import DatasetInfo
from cloze.pipeline.tokenizer.tokenizer import Tokenizer


def check_vocabulary(known: Tokenizer, extended: Tokenizer, path: str, remedy: str) -> list[str]:
    """Check that the dataset's tokenizer `extended` extends the model's tokenizer `known`.

    Returns:
        The tokens of `extended`, by id.

    Raises:
        UsageError: an id refers to another token.
    """
    model_tokens, dataset_tokens = _pieces(known), _pieces(extended)
    for token_id, token in enumerate(model_tokens):
        dataset_token = dataset_tokens[token_id] if token_id < len(dataset_tokens) else None
        if dataset_token != token:
            raise UsageError(
                f"the dataset's tokenizer does not fit the embedding of {path}: id {token_id} is "
                f"{token!r} there and "
                f"{'nothing' if dataset_token is None else repr(dataset_token)} in the dataset; "
                f"{remedy}"
            )
    return dataset_tokens


def extend_embeddings(
    loaded: LoadedCheckpoint, extended: Tokenizer, path: str
) -> dict[str, Tensor]:
    """Return the checkpoint's weights, with an embedding row for each token of `extended` it lacks.

    A new token starts as the mean of the tokens into which the checkpoint's tokenizer splits it.

    Args:
        path: the checkpoint, for messages.

    Raises:
        UsageError: the dataset's vocabulary does not start with the checkpoint's.
    """
    model_tokenizer = tokenizer.load(loaded.tokenizer)
    remedy = f"make the dataset with --tokenizer {loaded.tokenizer}, or with an extension of it"
    tokens = check_vocabulary(model_tokenizer, extended, path, remedy)
    state = dict(loaded.state)
    known_count = model_tokenizer.vocab_size  # rows may be more: some embeddings are padded
    new_tokens = tokens[known_count:]
    if not new_tokens:
        return state
    splits = model_tokenizer.encode_batch([_plain(token) for token in new_tokens])
    for name in vocab_parameters(loaded.model):
        if name in state:
            rows = state[name]
            known = rows[:known_count].float()  # spellings are integers, and are set later
            means = [known[ids].mean(dim=0) if ids else known.mean(dim=0) for ids in splits]
            new_rows = torch.stack(means).to(rows.dtype)
            # New tokens take the padded rows behind the vocabulary first; those left over stay.
            state[name] = torch.cat([rows[:known_count], new_rows, rows[len(tokens) :]])
    return state


def _pieces(loaded: Tokenizer) -> list[str]:
    tokens: list[str] = [""] * loaded.vocab_size
    for token, token_id in loaded.backend.get_vocab(with_added_tokens=True).items():
        tokens[token_id] = token
    return tokens


def _plain(piece: str) -> str:
    return piece.removeprefix("##").replace("Ġ", " ").replace("▁", " ").strip()


class Teacher:
    """The frozen model that a student learns from (DistilBERT, Sanh et al., 2019).

    Args:
        model: config of the teacher.
        state: weights of the teacher, under Cloze's names.
    """

    def __init__(self, model: ModelConfig, state: Mapping[str, Tensor]) -> None:
        self.model = model
        self.state = state
        self.network: nn.Module = load_model(model, state).requires_grad_(False)
        self.temperature = torch.tensor(1.0)

    def prepare_for(self, student: ModelConfig, distill: DistillOptions | None) -> None:
        """Take the temperature of `distill`, or without it that of the student's family.

        Raises:
            UsageError: the student does not fill masks.
        """
        if "masked_lm" not in student.heads or "discriminator" in student.heads:
            raise UsageError(
                f"teacher is for students that fill masks, and {student.family} models train "
                f"otherwise; use another model, such as distilbert-base"
            )
        temperature = student.teacher_temperature() if distill is None else distill.temperature
        self.temperature = torch.tensor(temperature)

    def to(self, device: torch.device) -> None:
        """Move the teacher to the student's device, before the first batch."""
        self.network.to(device)
        self.temperature = self.temperature.to(device)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Return `teacher_logits` [M, V], `teacher_hidden` [B, L, D] and `temperature`."""
        return self.rename(self.network(batch))

    def rename(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the network's outputs under the names that objectives read."""
        return {
            "teacher_logits": outputs["mlm_logits"],
            "teacher_hidden": outputs["hidden"],
            "temperature": self.temperature,
        }


def load_teacher(path: str, info: DatasetInfo, pieces: str, build: BuildContext) -> Teacher:
    """Read the teacher at `path`.

    Args:
        path: a path that `checkpoint.resolve` accepts, or a Hugging Face directory.
        info: metadata of the dataset.
        pieces: tokenizer directory of the dataset.
        build: build context, which pins the checkpoint.

    Raises:
        UsageError: the teacher has no masked_lm head, or cannot read the dataset.
        DataError: there is no usable model at `path`.
    """
    has_config = storage.exists(storage.join(path, checkpoint.CONFIG))
    if has_config and not checkpoints.is_checkpoint(path):
        imported = read_directory(path)
        model, state, heads, tokenizer_path = imported.model, imported.state, imported.heads, path
        is_trained = "masked_lm" not in imported.untrained
    else:
        loaded = checkpoint.load_input(build, path)
        model, state, heads = loaded.model, loaded.state, loaded.heads
        tokenizer_path, is_trained = loaded.tokenizer, "masked_lm" not in loaded.untrained
    if "masked_lm" not in heads or "discriminator" in heads:
        raise UsageError(
            f"teacher ({path}) has no masked_lm head to learn from (it has {', '.join(heads)}); "
            f"use another model"
        )
    if not is_trained:
        raise UsageError(
            f"masked_lm of teacher ({path}) was never trained: its weights are random; use another "
            f"model"
        )
    if model.max_position_embeddings < info.length:
        raise UsageError(
            f"teacher ({path}) reads {model.max_position_embeddings} positions, the dataset has "
            f"rows of {info.length}; make the dataset shorter"
        )
    remedy = f"make the dataset with --tokenizer {tokenizer_path}"
    check_vocabulary(tokenizer.load(tokenizer_path), tokenizer.load(pieces), path, remedy)
    if model.vocab_size < info.vocab_size:
        raise UsageError(
            f"teacher ({path}) knows {model.vocab_size:,} pieces, the dataset's vocabulary has "
            f"{info.vocab_size:,}; {remedy}"
        )
    return Teacher(model, state)


DEFAULT_MODEL = "bert-base"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialModel:
    """The model that training starts with.

    Attributes:
        model: config of the model, with its vocabulary size.
        state: initial weights, under Cloze's names; missing ones (a head) are random. None: all
            random.
        teacher_weights: if `state` is None: weights that a student takes from its teacher.
        untrained: modules of `state` with random weights.
    """

    model: ModelConfig
    state: Mapping[str, Tensor] | None = field(default=None, repr=False)
    teacher_weights: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    untrained: Sequence[str] = ()


def initial_model(
    requested: ModelConfig | None,
    path: str | None,
    info: DatasetInfo,
    pieces: str,
    teacher: Teacher | None = None,
) -> InitialModel:
    """Choose the initial model.

    Args:
        requested: model of the config; None: the checkpoint's, or BERT-base without a checkpoint.
        path: a checkpoint, or None.
        teacher: gives a student without a checkpoint its initial weights.

    Raises:
        UsageError: model, checkpoint and dataset do not fit together.
        DataError: the checkpoint is missing or damaged.
    """
    if path is None:
        model = for_dataset(requested or model_config(DEFAULT_MODEL), info)
        weights = first_weights(model, teacher.model, teacher.state) if teacher else {}
        return InitialModel(model=model, teacher_weights=weights)
    with checkpoint.resolve_pinned(path) as directory:
        loaded = checkpoint.load(directory)
        model = saved_model(requested, loaded, path)
        state = extend_embeddings(loaded, tokenizer.load(pieces), path)
    # The table may have more rows than tokens: some are padded.
    rows = max(model.vocab_size, tokenizer.load(pieces).vocab_size)
    model = model.model_copy(update={"vocab_size": rows})
    model = for_dataset(model, info)
    return InitialModel(model=model, state=state, untrained=loaded.untrained)


def build_network(
    beginning: InitialModel, extend: Callable[[PretrainingModel], None] | None = None
) -> tuple[PretrainingModel, list[str]]:
    """Build the network; return it with the names of parameters that begin at random.

    Args:
        extend: adds modules that only the training uses, before the weights are read.

    Raises:
        UsageError: the encoder's weights do not match the config.
    """
    network = new_model(beginning.model)
    if extend is not None:
        extend(network)
    if beginning.state is None:
        # What the teacher lacks keeps its random start.
        network.load_state_dict(beginning.teacher_weights, strict=False)
        return network, sorted(network.state_dict().keys() - beginning.teacher_weights.keys())
    model_state = network.state_dict()
    for name, tensor in model_state.items():
        if name not in beginning.state:
            if name.startswith("encoder."):
                raise UsageError(
                    f"the checkpoint lacks {name}; use a checkpoint of a {beginning.model.family} "
                    f"model"
                )
            continue
        saved = beginning.state[name]  # one at a time, as they may be read from disk
        if saved.shape != tensor.shape:
            raise UsageError(
                f"{name} of the checkpoint has the shape {tuple(saved.shape)}, the model's is "
                f"{tuple(tensor.shape)}; leave model out to take the checkpoint's"
            )
        tensor.copy_(saved)
    return network, sorted(model_state.keys() - beginning.state.keys())


def saved_model(requested: ModelConfig | None, loaded: LoadedCheckpoint, path: str) -> ModelConfig:
    """Return the checkpoint's model, with the dropout of the model that is given with it.

    Raises:
        UsageError: anything else of `requested` differs from the checkpoint's model.
    """
    if requested is None:
        return loaded.model
    ignored = {"vocab_size", "pad_token_id", "initializer_range"}
    given, saved = requested.model_dump(), loaded.model.model_dump()
    dropout = {name: rate for name, rate in given.items() if name.endswith("_dropout")}
    for name in [*given, *saved]:
        if name not in {*ignored, *dropout} and given.get(name) != saved.get(name):
            raise UsageError(
                f"{name} ({given.get(name)}) is not that of the checkpoint {path} "
                f"({saved.get(name)}); leave model out to take the checkpoint's"
            )
    return loaded.model.model_copy(update=dropout)
