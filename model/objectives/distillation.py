"""Distillation: run student and teacher on a batch, and pair hidden states and MiniLM's relations.

Hooks record states in the forward pass, in every layout and engine; networks with hooks are not
compiled. A matrix that maps the student's states to the teacher's width is trained as the student's
module `distillation`. Models that are loaded from a checkpoint do not have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import DISTILLATION
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.cpu import Linear
from cloze.model.layers.encoder import Encoder, recorded

STATES, RELATIONS = "states", "relations"  # objectives that read recorded states
QKV = ["query", "key", "value"]
RECORDED = frozenset({STATES, RELATIONS})


def add_projection(
    network: nn.Module, student: ModelConfig, teacher: ModelConfig, objectives: Collection[str]
) -> None:
    """Add the matrix from the student's width to the teacher's, if `objectives` need one.

    Torch's current random state sets its initial weights.
    """
    if STATES in objectives and student.hidden_size != teacher.hidden_size:
        network.add_module(DISTILLATION, Linear(student.hidden_size, teacher.hidden_size))


class Comparison:
    """Forward pass of a student and its teacher, with the states that their losses compare.

    Args:
        student: network; with an `encoder` if states are compared.
        teacher: frozen network in evaluation mode, likewise.
        models: configs of student and teacher.
        objectives: names of the objectives; those of `RECORDED` read states.
        relation_heads: heads of the relations; None: those of the teacher's last attention.

    Raises:
        UsageError: a model's attention has no plain queries and keys, or `relation_heads` does not
            divide a width.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        models: tuple[ModelConfig, ModelConfig],
        objectives: Collection[str],
        relation_heads: int | None = None,
    ) -> None:
        self.student, self.teacher = student, teacher
        self._records = RECORDED & set(objectives)
        own, other = (model.num_hidden_layers for model in models)
        # Layer i of the student meets layer i T / S of the teacher; 0 is the embeddings.
        self._layers = [number * other // own for number in range(own + 1)]
        self._heads = relation_heads or 1
        if RELATIONS in self._records:
            attentions = [_last_attention(_encoder(network)) for network in (student, teacher)]
            for model, attention in zip(models, attentions, strict=True):
                if type(attention) is not SelfAttention:
                    raise UsageError(
                        f"distill.relations is not for models of the family {model.family}, as "
                        f"they have more than one kind of queries or keys; use distill.hidden"
                    )
            self._heads = relation_heads or attentions[1].num_heads
            for attention in attentions:
                width = attention.num_heads * attention.head_size
                if width % self._heads:
                    raise UsageError(
                        f"distill.relation_heads ({self._heads}) must divide the widths of "
                        f"student and teacher (one is {width}); set another number"
                    )

    def __call__(self, batch: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """Return the student's outputs, the teacher's outputs, and the states that are compared.

        Returns:
            States for `STATES`: `states` and `teacher_states`, float [K, B, L, D] of the teacher's
            width D, of the embeddings and K - 1 layers. For `RELATIONS`: `relations` and
            `teacher_relations`, float [3, B, L, A, H], queries, keys and values of A relation
            heads; H differs if widths do. The teacher's have no gradient.
        """
        with recorded(self._modules(self.student)) as own:
            outputs = self.student(batch)
        with torch.no_grad(), recorded(self._modules(self.teacher)) as other:
            teacher_outputs = self.teacher(batch)
        compared: dict[str, Any] = {}
        if STATES in self._records:
            states = _rows(own, range(len(self._layers)), batch)
            if hasattr(self.student, DISTILLATION):
                states = self.student.get_submodule(DISTILLATION)(states)
            compared |= {"states": states, "teacher_states": _rows(other, self._layers, batch)}
        if RELATIONS in self._records:
            for name, found in (("relations", own), ("teacher_relations", other)):
                whole = found.pop("qkv", None)
                if whole is not None:
                    found |= zip(QKV, whole.chunk(3, dim=-1), strict=True)
                vectors = _rows(found, QKV, batch)
                compared[name] = vectors.view(*vectors.shape[:-1], self._heads, -1)
        return outputs, teacher_outputs, compared

    def _modules(self, network: nn.Module) -> dict[int | str, nn.Module]:
        """Return the modules of states by layer, 0 for the embeddings, and of q, k, v."""
        modules: dict[int | str, nn.Module] = {}
        encoder = _encoder(network) if self._records else None
        if encoder is not None and STATES in self._records:
            # The last state is that after the final norm, which post-norm families lack.
            modules |= enumerate([encoder.embeddings, *list(encoder.layers)[:-1], encoder.norm])
        if encoder is not None and RELATIONS in self._records:
            attention = _last_attention(encoder)
            names = ["qkv"] if attention.fused else QKV
            modules |= {name: attention.get_submodule(name) for name in names}
        return modules


def _encoder(network: nn.Module) -> Encoder:
    return cast(Encoder, network.get_submodule("encoder"))


def _last_attention(encoder: Encoder) -> SelfAttention:
    """Return the attention that runs last; shared layers run it several times."""
    return [module for module in encoder.modules() if isinstance(module, SelfAttention)][-1]


def _rows(
    states_of: Mapping[int | str, Tensor], keys: Iterable[int | str], batch: Mapping[str, Any]
) -> Tensor:
    """Return recorded states as padded rows, [K, B, L, D], from any layout."""
    layout, states = batch.get("layout"), [states_of[key] for key in keys]
    return torch.stack(states if layout is None else [layout.put_back(state) for state in states])
