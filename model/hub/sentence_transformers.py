"""What makes an exported encoder of vectors a directory that sentence-transformers opens: its modules, and how they pool.

    modules.json                        the transformer, the pooling, and, where vectors have length 1, a normalisation
    sentence_bert_config.json           the longest input
    1_Pooling/config.json               mean or first token
    config_sentence_transformers.json   how vectors are compared

The names are those of sentence-transformers 2 to 5, which reads all of them.
"""

from __future__ import annotations

import json
from typing import Any

from model.checkpoint import Loaded
from pipeline.core import storage

TRANSFORMER, POOLING, NORMALIZE = (f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize"))
MODES = {"mean": "pooling_mode_mean_tokens", "first": "pooling_mode_cls_token"}
OTHERS = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens")


def write(loaded: Loaded, directory: str) -> None:
    """Write the files beside those of transformers. Args: loaded: a checkpoint with the head `embedding`."""
    head = loaded.heads["embedding"]
    longest = int((loaded.task or {}).get("max_length", loaded.model.max_position_embeddings))
    pooling: dict[str, Any] = {"word_embedding_dimension": loaded.model.hidden_size, "include_prompt": True}
    pooling |= {mode: name == head["pooling"] for name, mode in MODES.items()} | dict.fromkeys(OTHERS, False)
    modules = [("", TRANSFORMER), ("1_Pooling", POOLING)] + ([("2_Normalize", NORMALIZE)] if head["normalize"] else [])
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
    compared: dict[str, Any] = {
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if head["normalize"] else "dot",
    }
    for name, content in (
        ("modules.json", listed),
        ("sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False}),
        ("1_Pooling/config.json", pooling),
        ("config_sentence_transformers.json", compared),
    ):
        storage.write_bytes(storage.join(directory, name), (json.dumps(content, indent=2) + "\n").encode())
