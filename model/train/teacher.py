"""The model that a student learns from (DistilBERT, Sanh et al., 2019): frozen, and run beside it on the same batches.

Any checkpoint with a masked-token head can teach, of this project or a Hugging Face directory, whose vocabulary is the
dataset's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from model import checkpoint
from model.families.config import ModelConfig
from model.families.models import first_weights, restore
from model.families.table import FAMILIES, config_class
from model.hub.read import read_directory
from model.train.vocabulary import check_vocabulary
from pipeline import tokenizer
from pipeline.core import checkpoints, storage
from pipeline.core.errors import UsageError
from pipeline.core.stage import Build
from pipeline.dataset.schema import DatasetInfo


class Teacher:
    """A trained model, and how its answers are softened.

    Args:
        model: its config.
        state: its weights, by our names.
        student: the config of what learns from it.
    """

    def __init__(self, model: ModelConfig, state: Mapping[str, Tensor], student: ModelConfig) -> None:
        self.model = model
        self.state = state
        self.network: nn.Module = restore(model, state).requires_grad_(False)
        self.temperature = torch.tensor(student.teacher_temperature())

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.state.values())

    def first_weights(self, student: ModelConfig) -> dict[str, Tensor]:
        """What a student of these sizes takes over."""
        return first_weights(student, self.model, self.state)

    def to(self, device: torch.device) -> None:
        """Move to where the student is trained, before the first batch."""
        self.network.to(device)
        self.temperature = self.temperature.to(device)

    @torch.no_grad()
    def __call__(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`teacher_logits` [M, V] and `teacher_hidden` [B, L, D] of a batch, and the `temperature`."""
        outputs = self.network(batch)
        return {
            "teacher_logits": outputs["mlm_logits"],
            "teacher_hidden": outputs["hidden"],
            "temperature": self.temperature,
        }


def load_teacher(path: str, student: ModelConfig | None, info: DatasetInfo, pieces: str, build: Build) -> Teacher:
    """Read the teacher at `path`.

    Args:
        path: what `checkpoint.resolve` accepts, or a Hugging Face directory.
        student: the config's model.
        info: of the dataset, whose tokenizer directory is `pieces`.
        build: that reads it.

    Raises:
        UsageError: the student's family does not learn from a teacher, or the teacher cannot read the dataset.
        DataError: there is no usable model at `path`.
    """
    if student is None or not student.learns_from_teacher:
        family = "bert" if student is None else student.family
        students = ", ".join(name for name in FAMILIES if config_class(name).learns_from_teacher)
        raise UsageError(f"teacher ({path}) is for models of the family {students}, this one is {family}; use {students}-base")
    if storage.exists(storage.join(path, checkpoint.CONFIG)) and not checkpoints.is_checkpoint(path):
        found = read_directory(path)
        model, state, heads, words = found.model, found.state, found.heads, path
    else:
        loaded = checkpoint.load_input(build, path)
        model, state, heads, words = loaded.model, loaded.state, loaded.heads, loaded.tokenizer
    if "masked_lm" not in heads or "discriminator" in heads:
        raise UsageError(f"teacher ({path}) has no masked_lm head to learn from (it has {', '.join(heads)}); use another model")
    if model.max_position_embeddings < info.length:
        raise UsageError(
            f"teacher ({path}) reads {model.max_position_embeddings} positions, the dataset has rows of {info.length}; make the"
            " dataset shorter"
        )
    check_vocabulary(tokenizer.load(words), tokenizer.load(pieces), path, f"make the dataset with --tokenizer {words}")
    if model.vocab_size < info.vocab_size:
        raise UsageError(
            f"teacher ({path}) knows {model.vocab_size:,} pieces, the dataset's vocabulary has {info.vocab_size:,}; make the"
            f" dataset with --tokenizer {words}"
        )
    return Teacher(model, state, student)
