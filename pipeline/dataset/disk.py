"""Stage "dataset", before shards are written: whether the disk will hold them."""

from __future__ import annotations

import os
import shutil

from pipeline.core import storage
from pipeline.core.errors import ClozeError

PACKED_SHARE = {"none": 1.0, "zstd": 0.5, "lz4": 0.65}  # of the bytes that are left, at least, on text: a lower bound


def check(path: str, parts: str, mask_share: float, id_bytes: int, copies: int, compression: str) -> int:
    """Refuse to begin what the disk cannot hold; nothing is known of an object store, where nothing is refused.

    Args:
        path: where the shards go.
        parts: the directory of the parts, which hold all rows once.
        mask_share: predicted tokens to all tokens, about.
        id_bytes: of an id.
        copies: of masks.
        compression: the config's.

    Returns:
        The bytes that the shards will take, about.

    Raises:
        ClozeError: too little is free.
    """
    if not storage.is_local(path) or not storage.is_local(parts):
        return 0
    directory = storage.filesystem(parts)[1]
    rows = sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    # A row's bytes are nearly all ids; each copy adds a position and an id for every predicted one.
    masks = rows / id_bytes * mask_share * copies * (2 + id_bytes)
    needed = int((rows + masks) * PACKED_SHARE[compression])
    free = shutil.disk_usage(storage.filesystem(path)[1]).free
    if free < needed:
        raise ClozeError(
            f"{path} has {free / 1e9:.2f} GB free, the shards will take some {needed / 1e9:.2f} GB; free some space, or use fewer"
            " copies or --compression zstd, and run the same command again"
        )
    return needed
