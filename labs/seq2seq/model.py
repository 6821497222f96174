"""The pretraining model of encoder-decoders."""

from __future__ import annotations

from torch import Tensor, nn

from cloze.labs.seq2seq.decoder import EncoderDecoder, target_labels
from cloze.model.layers.batch import Batch


class Seq2SeqModel(nn.Module):
    """Encoder-decoder that writes a target: the batch's, or else its unmasked rows.

    Attributes:
        label_smoothing: see `EncoderDecoderConfig`; used in training only.
    """

    pooler = None

    def __init__(self, encoder: EncoderDecoder, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.encoder = encoder
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `hidden` [B, T, D] and `seq2seq_logits` [B, T, V], which may be lazy."""
        memory = self.encoder.memory_of(
            batch["input_ids"], batch.get("attention_mask"), batch.get("layout")
        )
        hidden = self.encoder.decode(memory, target_labels(batch))
        outputs = {"hidden": hidden, "seq2seq_logits": self.encoder.logits(hidden)}
        if self.training and self.label_smoothing:
            outputs["label_smoothing"] = hidden.new_tensor(self.label_smoothing)
        return outputs
