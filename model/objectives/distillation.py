"""States of a student beside its teacher's: hidden states of matched layers, MiniLM's relations.

Hooks record what the networks compute anyway, so that this works in every layout and engine;
networks with hooks are not compiled. The matrix that maps a student's states to the teacher's width
trains as part of the student's network, as `distillation`, and is no part of what loads a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.model.families.config import ModelConfig
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.cpu import Linear
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.unpadded import UnpaddedLayout

PROJECTION = "distillation"  # module of the network, and first part of its parameters' names
STATES, RELATIONS = "states", "relations"  # objectives that read recorded states
RECORDED = frozenset({STATES, RELATIONS})


def without_projection(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a network without the matrix that only its training used."""
    return {name: state[name] for name in state if not name.startswith(f"{PROJECTION}.")}


def add_projection(
    network: nn.Module, student: ModelConfig, teacher: ModelConfig, objectives: Collection[str]
) -> None:
    """Register the matrix from the student's width to the teacher's, if `states` needs one.

    Its weights come from torch's current random state.
    """
    if STATES in objectives and student.hidden_size != teacher.hidden_size:
        network.add_module(PROJECTION, Linear(student.hidden_size, teacher.hidden_size))


class Comparison:
    """Runs a student and its teacher on a batch, and returns what their losses compare.

    Args:
        student: network with an `encoder`, and a projection if `add_projection` made one.
        teacher: frozen network with an `encoder`, in evaluation mode.
        models: configs of student and teacher.
        objectives: names of the objectives; those of `RECORDED` read states.
        relation_heads: heads of the relations; None: the teacher's attention heads.

    Raises:
        UsageError: a model's attention has no such relations, or the heads do not divide a width.
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
        self._heads = relation_heads or models[1].num_attention_heads
        own, other = (model.num_hidden_layers for model in models)
        self._layers = [number * other // own for number in range(own + 1)]
        if RELATIONS in self._records:
            for model, network in zip(models, (student, teacher), strict=True):
                self._check_relations(model, network)

    def _check_relations(self, model: ModelConfig, network: nn.Module) -> None:
        if type(_last_attention(_encoder(network))) is not SelfAttention:
            raise UsageError(
                f"distill.relations is not for models of the family {model.family}, whose queries "
                f"and keys are more than those of tokens; use distill.hidden"
            )
        if model.hidden_size % self._heads:
            raise UsageError(
                f"distill.relation_heads ({self._heads}) must divide the width of student and "
                f"teacher ({model.hidden_size} is one); set another number"
            )

    def __call__(self, batch: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """Return outputs of student and teacher, and those that the objectives read.

        Returns:
            The third is for `STATES`: `states` and `teacher_states`, float [K, B, L, D] with the
            teacher's width; for `RELATIONS`: `relations` and `teacher_relations`, float
            [3, B, L, A, H] with A heads of the model's own width. No gradient reaches the teacher.
        """
        with self._recorded(self.student) as own:
            outputs = self.student(batch)
        with torch.no_grad(), self._recorded(self.teacher) as other:
            teacher_outputs = self.teacher(batch)
        compared: dict[str, Any] = {}
        if STATES in self._records:
            states = torch.stack([_rows(own[number], batch) for number in range(len(self._layers))])
            if hasattr(self.student, PROJECTION):
                states = self.student.get_submodule(PROJECTION)(states)
            compared["states"] = states
            compared["teacher_states"] = torch.stack(
                [_rows(other[number], batch) for number in self._layers]
            )
        if RELATIONS in self._records:
            for name, found in (("relations", own), ("teacher_relations", other)):
                vectors = torch.stack([_rows(found[part], batch) for part in ("q", "k", "v")])
                compared[name] = vectors.unflatten(-1, (self._heads, -1))
        return outputs, teacher_outputs, compared

    @contextmanager
    def _recorded(self, network: nn.Module) -> Iterator[dict[int | str, Tensor]]:
        """Record states by layer, 0 for the embeddings, and q, k, v of the last layer."""
        found: dict[int | str, Tensor] = {}
        encoder = _encoder(network)
        modules: dict[int | str, nn.Module] = {}
        if STATES in self._records:
            # The last state is that after the final norm, which post-norm families lack.
            parts = [encoder.embeddings, *list(encoder.layers)[:-1], encoder.norm]
            modules |= dict(enumerate(parts))
        if RELATIONS in self._records:
            attention = _last_attention(encoder)
            assert attention is not None
            names = {"qkv": "qkv"} if attention.fused else {"q": "query", "k": "key", "v": "value"}
            modules |= {key: attention.get_submodule(name) for key, name in names.items()}

        def keep(key: int | str) -> Any:
            def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
                parts = output.chunk(3, dim=-1) if key == "qkv" else (output,)
                names = "qkv" if key == "qkv" else (key,)
                found.update(zip(names, parts, strict=True))

            return hook

        hooks = [module.register_forward_hook(keep(key)) for key, module in modules.items()]
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()


def _encoder(network: nn.Module) -> Encoder:
    return cast(Encoder, network.get_submodule("encoder"))


def _last_attention(encoder: Encoder) -> SelfAttention | None:
    """Return the attention that runs last; shared layers run it several times."""
    found = [module for module in encoder.modules() if isinstance(module, SelfAttention)]
    return found[-1] if found else None


def _rows(values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Return states as rows, [B, L, D], from any layout."""
    layout = batch.get("layout")
    return layout.put_back(values) if isinstance(layout, UnpaddedLayout) else values
