"""Search in 10^4, 10^5 and 10^6 passages: time to build, size, memory and latency.

    python -m benchmarks.search_scale --index W/small --index W/index --corpus W/corpus \
        --checkpoint W/retriever --questions SHARED/tasks/squad/dev-v1.1.json --out DIR

Indexes are measured as they are. The corpus is indexed with every document repeated `--times` and
short passages (`--passage-words`). A repetition has another key, and every third word of it another
ending, so that the vocabulary grows. Vectors are random: the time of a search does not depend on
their values, and embedding a million passages takes hours. Latency is CPU time of one thread.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.search import questions_of, timing
from cloze.core import arrow, random_keys
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.stages.execute import execute
from cloze.labs.retrieval.passages import PassageIndex
from cloze.labs.retrieval.stages import INDEX as STAGE
from cloze.labs.retrieval.stages import IndexConfig
from cloze.labs.vectors import quantize, vectors_batch, vectors_file_name
from cloze.pipeline.corpus.files.shards import CorpusShards, read_shard

CLOCK = "process_time"
PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def write_manifest(path: Path, stage: str, parents: dict[str, str], config: dict) -> None:
    manifest = artifact.Manifest(
        stage=stage,
        version=1,
        fingerprint=artifact.fingerprint(stage, 1, {"path": str(path)}, parents),
        parents=parents,
        config=config,
        files=artifact.hash_files(str(path), artifact.data_files(str(path))),
    )
    artifact.write_manifest(str(path), manifest)


def changed(sentence: str, copy: int) -> str:
    words = sentence.split(" ")
    words[copy % 3 :: 3] = [f"{word}{copy}" for word in words[copy % 3 :: 3]]
    return " ".join(words)


def repeated(corpus: str, out: Path, times: int) -> str:
    """Write a corpus with every document of another one `times` times."""
    shards = CorpusShards.open(corpus)
    for number, name in enumerate(shards.names):
        table = read_shard(shards.file(name))
        for copy in range(times):
            keys = random_keys.splitmix64(table["key"].to_numpy() + np.uint64(copy))
            sentences = [
                [changed(sentence, copy) if copy else sentence for sentence in document]
                for document in table["sentences"].to_pylist()
            ]
            values = {"key": pa.array(keys), "sentences": pa.array(sentences)}
            columns = [
                values.get(field.name, table[field.name].combine_chunks()).cast(field.type)
                for field in table.schema
            ]
            target = f"corpus-{number * times + copy:05d}-of-{len(shards.names) * times:05d}.arrow"
            batches = pa.table(columns, schema=table.schema).to_batches()
            arrow.write_arrow(str(out / target), table.schema, batches)
    write_manifest(out, "corpus", {}, {})
    return str(out)


def random_vectors(index: str, checkpoint: str, out: Path, width: int) -> str:
    """Write random vectors of an index's passages."""
    generator = np.random.default_rng(1)
    names = PassageIndex.open(index).names
    for name in names:
        keys = arrow.read_arrow(f"{index}/{name}")["key"].to_numpy()
        vectors = quantize(generator.standard_normal((len(keys), width), np.float32))
        batch = vectors_batch(keys, vectors)
        arrow.write_arrow(str(out / vectors_file_name(name)), batch.schema, [batch])
    parents = {
        role: fingerprints.input_fingerprint(path)
        for role, path in (("corpus", index), ("checkpoint", checkpoint))
    }
    write_manifest(out, "vectors", parents, {"pooling": None, "max_length": None})
    (out / "_logs").mkdir()
    return str(out)


def build(corpus: str, index: str, words: int) -> str:
    """Index a corpus, and print time and size."""
    begin = time.perf_counter()
    used = sum(resource.getrusage(who).ru_utime for who in PROCESSES)
    execute(STAGE, IndexConfig(passage_words=words), {"corpus": corpus}, index)
    used = sum(resource.getrusage(who).ru_utime for who in PROCESSES) - used
    size = sum(file.stat().st_size for file in Path(index).glob("p*.arrow"))
    seconds = time.perf_counter() - begin
    print(f"built in {seconds:.0f} s ({used:.0f} s of CPU), {size / 1e6:,.0f} MB", flush=True)
    return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", action="append", default=[])
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--passage-words", type=int, default=20)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--limit", type=int, default=50, help="questions per index")
    arguments = parser.parse_args()
    questions = [text for text, _ in questions_of(arguments.questions)][: arguments.limit]
    corpus = repeated(arguments.corpus, arguments.out / "corpus", arguments.times)
    indexes = [
        *arguments.index,
        build(corpus, str(arguments.out / "index"), arguments.passage_words),
    ]
    print("| by | passages | p50 ms | p98 ms | process, MB |\n|---|---|---|---|---|")
    for number, index in enumerate(indexes):
        vectors = random_vectors(
            index, arguments.checkpoint, arguments.out / f"vectors-{number}", arguments.width
        )
        timing(index, "bm25", questions, CLOCK)
        timing(vectors, "dense", questions, CLOCK)
        timing(vectors, "both", questions, CLOCK)


if __name__ == "__main__":
    main()
