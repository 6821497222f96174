"""The encoder: embeddings, a stack of layers, and the feed-forward block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cloze.core.errors import UsageError
from cloze.model.layers.attention import gather_positions
from cloze.model.layers.cpu import ACTIVATIONS, Dropout, Linear, ModuleReference, autocast_input
from cloze.model.layers.embeddings import Embeddings
from cloze.model.layers.layout import BatchLayout

K = TypeVar("K", bound=Hashable)
# Maximum graphs of layers in a process. Beyond torch's limit of 8 it would run layers plain, and a
# network with windows has 7.
GRAPHS = 64


class FeedForward(nn.Module):
    """Position-wise feed-forward block: up projection, activation, down projection.

    Args:
        activation: name in `ACTIVATIONS`.
        gated: project up twice with one matrix, and multiply the activated half by the other
            (Shazeer, "GLU Variants", 2020; with gelu: GeGLU).
        split: with gated, use two matrices, `gate` (activated) and `value`, as T5's files do.
        dropout: dropout before the down projection.

    Attributes:
        stacked: number of projections in each stacked matrix, by module name.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str,
        gated: bool = False,
        split: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.gated, self.split = gated, gated and split
        self.stacked = {"up": 2} if gated and not split else {}
        if self.split:
            self.gate = Linear(hidden_size, intermediate_size, bias=bias)
            self.value = Linear(hidden_size, intermediate_size, bias=bias)
        else:
            self.up = Linear(hidden_size, intermediate_size * (2 if gated else 1), bias=bias)
        self.down = Linear(intermediate_size, hidden_size, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map float [..., D] to float [..., D], before any residual."""
        if self.split:
            projected = self.activation(self.gate(hidden)) * self.value(hidden)
        elif self.gated:
            value, gate = self.up(hidden).chunk(2, dim=-1)
            projected = self.activation(value) * gate
        else:
            projected = self.activation(self.up(hidden))
        output: Tensor = self.down(self.dropout(projected))
        return output


class EncoderLayer(nn.Module):
    """Encoder layer: attention and feed-forward, each with residual, dropout and norms.

    With a cross-attention between the two, it is a decoder layer. A family passes the norms that it
    uses; missing ones are identities without parameters.

    Args:
        attention: maps (hidden, layout) to the shape of hidden.
        feed_forward: maps hidden to its shape.
        attention_input_norm, feed_forward_input_norm: applied before the block (pre-norm).
        attention_norm, feed_forward_norm: applied to the sum (post-norm, as in BERT).
        cross_attention: attention to the layout's memory, in decoders.
        cross_attention_input_norm, cross_attention_norm: norms of that block.
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        *,
        dropout: float,
        attention_input_norm: nn.Module | None = None,
        attention_norm: nn.Module | None = None,
        feed_forward_input_norm: nn.Module | None = None,
        feed_forward_norm: nn.Module | None = None,
        cross_attention: nn.Module | None = None,
        cross_attention_input_norm: nn.Module | None = None,
        cross_attention_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.attention_input_norm = attention_input_norm or nn.Identity()
        self.attention = attention
        self.attention_norm = attention_norm or nn.Identity()
        self.cross_attention = cross_attention
        if cross_attention is not None:
            self.cross_attention_input_norm = cross_attention_input_norm or nn.Identity()
            self.cross_attention_norm = cross_attention_norm or nn.Identity()
        self.feed_forward_input_norm = feed_forward_input_norm or nn.Identity()
        self.feed_forward = feed_forward
        self.feed_forward_norm = feed_forward_norm or nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(
        self, hidden: Tensor, layout: BatchLayout | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Run the layer for all positions or for chosen ones.

        All positions are keys and values of the attention. With `positions`, the rest (output
        projection, sums, norms, feed-forward) is computed at the chosen positions only.

        Args:
            hidden, layout, positions: as for `SelfAttention.forward`.

        Returns:
            The shape of `hidden`, or [P, D] at `positions`.
        """
        attended = self.attention(self.attention_input_norm(hidden), layout, positions)
        return self.finished(gather_positions(hidden, positions), attended, layout)

    def finished(
        self, before: Tensor, attended: Tensor, layout: BatchLayout | None = None
    ) -> Tensor:
        """Run the rest of the layer: `before` is the attention's input, `attended` its output."""
        hidden = autocast_input(self.attention_norm(before + self.dropout(attended)), stream=True)
        if self.cross_attention is not None:
            crossed = self.cross_attention(self.cross_attention_input_norm(hidden), layout)
            hidden = autocast_input(
                self.cross_attention_norm(hidden + self.dropout(crossed)), stream=True
            )
        transformed = self.feed_forward(self.feed_forward_input_norm(hidden))
        return autocast_input(
            self.feed_forward_norm(hidden + self.dropout(transformed)), stream=True
        )


# (hidden states, layout, flat positions or None for all) to states, as `Encoder.run`
Run = Callable[[Tensor, BatchLayout, Tensor | None], Tensor]


class Encoder(nn.Module):
    """Embeddings, a stack of layers, and a final norm.

    Attributes:
        supports_unpadding: accepts any layout; else only padded rows.
        activation_checkpointing: layers keep only their inputs in training and are computed again
            for the gradient (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016):
            same bits, a third more work.
    """

    supports_unpadding: bool = True
    activation_checkpointing: bool = False

    def __init__(
        self, embeddings: Embeddings, layers: Sequence[nn.Module], norm: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.norm = norm or nn.Identity()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        layout: BatchLayout | None = None,
        positions: Tensor | None = None,
        run: Run | None = None,
    ) -> Tensor:
        """Return the last layer's states, float [B, L, D] (undefined at padding) or [P, D].

        Args:
            input_ids, token_type_ids: int64 [B, L].
            attention_mask: bool [B, L], true at tokens, which precede padding; None: everywhere.
            layout: layout of this batch from the collator; it changes results only by rounding.
                None: `rows`.
            positions: int64 [P], flat positions in B * L. Most of the last layer is computed only
                there; their states change only by rounding.
            run: computes states from embeddings instead of the encoder's own layers.
        """
        run = self.run if run is None else run
        layout = (
            self.rows(input_ids, attention_mask, token_type_ids)
            if layout is None
            else layout.fresh()
        )
        if layout.flat_positions is not None:
            taken = layout.flat_positions
            embedded = self.embeddings(
                input_ids.flatten().index_select(0, taken),
                token_type_ids.flatten().index_select(0, taken),
                layout.positions,
            )
            if positions is not None and layout.slots is not None:
                # Positions come in B * L, and states are [T, D]: `slots` maps one to the other.
                return run(embedded, layout, layout.slots.index_select(0, positions))
            return layout.put_back(run(embedded, layout, None))
        return run(self.embeddings(input_ids, token_type_ids, layout.positions), layout, positions)

    def layout_of(self, ids: Tensor, batch: Mapping[str, Any]) -> BatchLayout | None:
        """Return the layout that fields of a batch without one ask for; None: `rows`."""
        del ids, batch
        return None

    def rows(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None = None
    ) -> BatchLayout:
        """Return the layout of a batch that comes without one; arguments as for `forward`."""
        del token_type_ids
        return rows_of(input_ids, attention_mask)

    def run(self, hidden: Tensor, layout: BatchLayout, positions: Tensor | None = None) -> Tensor:
        """Run the layers and the final norm; `positions` as for the last layer."""
        hidden = self.layers[-1](self.below(hidden, layout), layout, positions)
        normed: Tensor = self.norm(hidden)
        return normed

    def below(self, hidden: Tensor, layout: BatchLayout) -> Tensor:
        """Run all layers except the last."""
        recomputes = (
            self.activation_checkpointing
            and torch.is_grad_enabled()
            # A compiled graph decides itself what it computes again.
            and not torch.compiler.is_compiling()
        )
        for number, layer in enumerate(self.layers[:-1]):
            # The first layer computes what all layers share (`BatchLayout`), so it is not
            # recomputed.
            recomputed = recomputes and number > 0
            hidden = (
                checkpoint(layer, hidden, layout, use_reentrant=False)
                if recomputed
                else layer(hidden, layout)
            )
        return hidden


def layer_count(encoder: nn.Module) -> int:
    """Return the number of layers whose states `layer_states` can return.

    Raises:
        UsageError: the model has a decoder, so its states are not those of the last layer.
    """
    if hasattr(encoder, "decoder"):
        raise UsageError(
            "states of layers are those of an encoder, and this model has a decoder, too; use "
            "another model"
        )
    return len(list(encoder.get_submodule("layers").children()))


def layer_states(
    encoder: nn.Module, layers: Sequence[int], run: Callable[[], Tensor]
) -> list[Tensor]:
    """Return the states of several layers, float [B, L, D] each, in the order of `layers`.

    Args:
        encoder: encoder of n layers.
        layers: layers, from 0 (the embeddings) to n (the last one, with the final norm).
        run: runs the encoder on padded rows and returns its states.
    """
    parts = [encoder.get_submodule("embeddings"), *encoder.get_submodule("layers").children()]
    last = len(parts) - 1
    with recorded({number: parts[number] for number in set(layers) - {last}}) as states:
        states[last] = run()
    return [states[number] for number in layers]


@contextmanager
def recorded(modules: Mapping[K, nn.Module]) -> Iterator[dict[K, Tensor]]:
    """Keep the last output of each module that runs in the block, by its key, with gradient."""
    outputs: dict[K, Tensor] = {}

    def keep(key: K, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        outputs[key] = output

    hooks = [module.register_forward_hook(partial(keep, key)) for key, module in modules.items()]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


class GroupedEncoder(Encoder):
    """Encoder whose layers are repeated references to the layers in `groups`."""

    def __init__(
        self, embeddings: Embeddings, groups: list[list[EncoderLayer]], repeats: int
    ) -> None:
        # References: each weight has one owner, and so one name, in `groups`.
        run = [
            ModuleReference(layer) for group in groups for _ in range(repeats) for layer in group
        ]
        super().__init__(embeddings, run)
        self.groups = nn.ModuleList([nn.ModuleList(group) for group in groups])


def compile_layers(network: nn.Module, compiled: bool = True, *, dynamic: bool = True) -> None:
    """Compile all encoder layers, or run them plain.

    Layers of equal structure share one graph for all batch shapes, so compile time does not grow
    with depth; without `dynamic` each shape has one. `set_stance("force_eager")` runs all plain.
    """
    if compiled:
        torch._dynamo.config.recompile_limit = GRAPHS if dynamic else 4 * GRAPHS
    for module in network.modules():
        if isinstance(module, EncoderLayer):
            # `Module.compile` sets it, and torch 2.13 has no call that takes it back.
            module._compiled_call_impl = None
            if compiled:
                module.compile(dynamic=dynamic)


def enable_activation_checkpointing(network: nn.Module) -> None:
    """Enable activation checkpointing in all encoders, except for the first and last layer."""
    for module in network.modules():
        if isinstance(module, Encoder):
            module.activation_checkpointing = True


def rows_of(input_ids: Tensor, attention_mask: Tensor | None) -> BatchLayout:
    """Return a padded layout with one sequence per row."""
    return BatchLayout((input_ids.shape[0], input_ids.shape[1]), attention_mask)
