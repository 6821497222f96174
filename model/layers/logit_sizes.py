"""How large logits over a vocabulary become, and from when on they are computed a chunk of rows at a time. No torch."""

from __future__ import annotations

# Bytes of a chunk's logits in fp32: rows enough to fill the matrix units, and little beside what the layers keep.
CHUNK = {"cpu": 64 << 20, "cuda": 256 << 20}
CHUNKS = 2  # logits of at most so many chunks are computed whole: there is little to save


def chunk_rows(vocabulary: int, device: str) -> int:
    """Rows of logits that are computed at once, at least 1. Args: device: its type."""
    return max(1, CHUNK.get(device, CHUNK["cuda"]) // (4 * vocabulary))


def in_chunks(rows: int, vocabulary: int, device: str) -> bool:
    """Whether logits [rows, vocabulary] are large enough to be computed in chunks."""
    return rows > CHUNKS * chunk_rows(vocabulary, device)
