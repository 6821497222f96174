"""Embeddings and a stack of layers: token ids to hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.layers.embeddings import Embeddings
from model.layers.layout import Layout, Rows
from model.layers.unpadded import Tokens

# (hidden states, layout, flat positions or None for all) to states: as `Encoder.run`
Run = Callable[[Tensor, Layout, Tensor | None], Tensor]


class Encoder(nn.Module):
    """Embeddings, a stack of layers, and a norm at the end where the family has one.

    Attributes:
        unpads: whether it takes any layout of rows that are one sequence each; else it takes them with their padding alone.
        recomputes: whether layers keep their inputs alone while training, and are computed again for the gradient (Chen et al.,
            "Training Deep Nets with Sublinear Memory Cost", 2016): the same bits, for a third more work. See `recompute_layers`.
    """

    unpads: bool = True
    recomputes: bool = False

    def __init__(self, embeddings: Embeddings, layers: Sequence[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        layout: Layout | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """The last layer's states, float [B, L, D]; what stands at padding means nothing. Or [P, D], those that are wanted.

        Args:
            input_ids, token_type_ids: int64 [B, L].
            attention_mask: bool [B, L], true where there is a token; None: everywhere. Tokens stand before padding.
            layout: how the tokens lie on their way through the layers, which changes no result but by rounding, and which of them
                are sequences of their own: as the collator made it of this batch. None: padded rows of one sequence each.
            wanted: int64 [P], positions among the flattened B * L. Most of the last layer is then computed there alone, which
                changes nothing at them but by rounding.
        """
        return self.through(self.run, input_ids, attention_mask, token_type_ids, layout, wanted)

    def through(
        self,
        run: Run,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        layout: Layout | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """As `forward`, with the embedded tokens going through `run` in place of the encoder's own."""
        layout = rows_of(input_ids, attention_mask) if layout is None else layout.fresh()
        if isinstance(layout, Tokens):
            embedded = self.embeddings(layout.take(input_ids), layout.take(token_type_ids), layout.positions)
            if wanted is not None:
                return run(embedded, layout, layout.find(wanted))
            return layout.put_back(run(embedded, layout, None))
        return run(self.embeddings(input_ids, token_type_ids, layout.positions), layout, wanted)

    def run(self, hidden: Tensor, layout: Layout, chosen: Tensor | None = None) -> Tensor:
        """The layers and the last norm, in whatever layout; `chosen` as for the layers, of which it concerns the last."""
        hidden = self.layers[-1](self.below(hidden, layout), layout, chosen)
        normed: Tensor = self.norm(hidden)
        return normed

    def below(self, hidden: Tensor, layout: Layout) -> Tensor:
        """All layers but the last."""
        again = self.recomputes and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        for number, layer in enumerate(self.layers[:-1]):
            # what all layers share (`Layout.once`) is made in the first one, which therefore runs as ever
            recomputed = again and number > 0
            hidden = checkpoint(layer, hidden, layout, use_reentrant=False) if recomputed else layer(hidden, layout)
        return hidden

    @torch.no_grad()
    def attention_maps(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        layout: Rows | None = None,
    ) -> list[Tensor]:
        """What each layer attends to: its probabilities before dropout, float [B, N, L, L], rows are queries. For analysis.

        Args: as for `forward`.
        """
        maps: list[Tensor] = []
        rows = (rows_of(input_ids, attention_mask) if layout is None else layout).recording(maps)
        self.run(self.embeddings(input_ids, token_type_ids, rows.positions), rows)
        return maps


def recompute_layers(network: nn.Module) -> None:
    """Have all encoders of a network compute their layers again for the gradient, but the first and the last one."""
    for part in network.modules():
        if isinstance(part, Encoder):
            part.recomputes = True


def rows_of(input_ids: Tensor, attention_mask: Tensor | None) -> Rows:
    """The layout of a batch that brings none."""
    return Rows((input_ids.shape[0], input_ids.shape[1]), attention_mask)
