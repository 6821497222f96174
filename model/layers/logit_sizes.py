"""Size limits for computing logits in chunks of rows. No torch."""

from __future__ import annotations

# Bytes of a chunk's fp32 logits: enough rows for the matrix units, little memory compared with the
# layers' activations.
CHUNK = {"cpu": 64 << 20, "cuda": 256 << 20}
CHUNKS = 2  # logits of at most this many chunks are computed whole


def chunk_rows(vocabulary: int, device: str) -> int:
    """Return the number of rows of logits per chunk, at least 1, for a device type."""
    return max(1, CHUNK.get(device, CHUNK["cuda"]) // (4 * vocabulary))


def in_chunks(rows: int, vocabulary: int, device: str) -> bool:
    """Return True if logits [rows, vocabulary] are computed in chunks; on a GPU all are.

    There the loss also pads the vocabulary, and `torch.compile` fuses its elementwise part.
    """
    return device != "cpu" or rows > CHUNKS * chunk_rows(vocabulary, device)
