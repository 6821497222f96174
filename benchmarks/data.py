"""The dataset stage's speed in pieces of text a second, against the tokenizer alone.

    python -m benchmarks.data --corpus W/corpus --tokenizer W/vocab [--rounds 3]

In one process on one core, in alternation, medians over the rounds; each round starts with an empty memory of words:

    encode_batch_fast   Hugging Face tokenizers on the corpus's sentences, ids taken out, nothing else
    stage, K copies     corpus shards to a finished dataset artifact: pairs, masks, Arrow, hashes, Beam's local runner
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from pipeline.jobs.dataset import STAGE, DatasetConfig
from pipeline.stage import execute
from pipeline.tokenizer import load
from pipeline.tokenizer.shared import shared_tokenizer
from pipeline.transforms.arrow import read_arrow
from pipeline.transforms.corpus_shards import CorpusShards

BATCH_SENTENCES = 4096


def sentences(corpus: str) -> list[str]:
    """All sentences of a corpus artifact."""
    shards = CorpusShards.open(corpus)
    return [text for name in shards.names for row in read_arrow(shards.file(name))["sentences"].to_pylist() for text in row]


def floor(backend: Any, texts: list[str]) -> int:
    """Tokenize the texts and take the ids out; returns how many there are."""
    batches = (texts[first : first + BATCH_SENTENCES] for first in range(0, len(texts), BATCH_SENTENCES))
    return sum(len(e.ids) for batch in batches for e in backend.encode_batch_fast(batch, add_special_tokens=False))


def stage(corpus: str, tokenizer: str, copies: int) -> int:
    """Make the dataset in a directory that is thrown away; returns the pieces of text read."""
    shared_tokenizer.cache_clear()
    with tempfile.TemporaryDirectory() as directory:
        config = DatasetConfig(copies=copies)
        return execute(STAGE, config, {"corpus": corpus, "vocab": tokenizer}, f"{directory}/dataset").manifest.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts, backend = sentences(arguments.corpus), load(arguments.tokenizer).backend
    runs: dict[str, Callable[[], int]] = {
        "encode_batch_fast": lambda: floor(backend, texts),
        "stage, 1 copy": lambda: stage(arguments.corpus, arguments.tokenizer, 1),
        "stage, 10 copies": lambda: stage(arguments.corpus, arguments.tokenizer, 10),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    pieces = 0
    for _ in range(arguments.rounds):
        for name, function in runs.items():
            started = time.perf_counter()
            pieces = function()
            seconds[name].append(time.perf_counter() - started)
    base = statistics.median(seconds["encode_batch_fast"])
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one used; {pieces:,} pieces")
    for name, found in seconds.items():
        median = statistics.median(found)
        print(f"{name:<18} {median:7.2f} s  {pieces / median / 1e6:5.2f}M pieces/s  {base / median:5.2f} of encode_batch_fast")


if __name__ == "__main__":
    main()
