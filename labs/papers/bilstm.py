"""The BiLSTM on top of a left-to-right encoder (Devlin et al., 2019, Table 5, last row)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cloze.model.layers.heads import Pooler


class LstmPooler(Pooler):
    """Bidirectional LSTM over the row; a vector of the row is pooled from its first state.

    Args:
        hidden_size: D; each direction has D / 2.
    """

    reads_first = False

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.lstm = nn.LSTM(hidden_size, hidden_size // 2, batch_first=True, bidirectional=True)

    def transform(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map hidden, float [B, L, D], to the LSTM's states, float [B, L, D], 0 at padding."""
        rows, length = hidden.shape[:2]
        lengths = torch.full((rows,), length)
        if attention_mask is not None:
            # pack_padded_sequence wants lengths on the host, so this pooler waits for the device.
            lengths = attention_mask.sum(dim=1).cpu()
        packed = pack_padded_sequence(
            hidden.float(), lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=length)
        return states.to(hidden.dtype)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(self.transform(hidden, attention_mask))
