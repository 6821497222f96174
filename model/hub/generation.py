"""What transformers' `generate` must know of a left-to-right model beside its config: where a text begins and ends."""

from __future__ import annotations

import json

from model.checkpoint import Loaded
from pipeline import tokenizer
from pipeline.core import storage

FILE = "generation_config.json"


def write(loaded: Loaded, directory: str) -> None:
    """Add the file to the Hugging Face directory `directory`, with the ids of the checkpoint's tokenizer."""
    special = tokenizer.load(loaded.tokenizer).special
    content = {"bos_token_id": special.cls, "eos_token_id": special.sep, "pad_token_id": special.pad}
    storage.write_bytes(storage.join(directory, FILE), (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
