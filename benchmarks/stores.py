"""What a store is asked for: requests and bytes of each stage, with its inputs and output on S3.

    python -m benchmarks.stores [--mebibytes 1] [--scales 1,4,16] [--workers 1,2] [--detail]
    [--stages corpus,vocab,dataset,pretrain,finetune] [--out table.json]

A server on loopback counts. The source is JSON lines of invented text in files of 512 KiB, at each
scale so many times `--mebibytes`; each stage reads the artifacts of those before it.

    input        bytes of the stage's inputs: of the source, or of the artifacts' data files
    in x         bytes of the inputs' objects in the server's answers, as a multiple of `input`
    scratch x    the same of intermediate files, as a multiple of what was written of them
    out x        the same of the finished output
    requests     of all kinds, without those that time brings (`timed`): renewals of the lease every
                 ten seconds, and questions whether to stop and how far a step is
    bound        (bytes read + bytes written) / 4 MiB + 100 a worker
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import boto3

from cloze.core import storage
from tests import warm
from tests.object_store import CountedServer, Request, environment
from tests.pipeline.corpus.corpora import prose

FILE_BYTES, REQUEST_BYTES, ALLOWANCE = 512 << 10, 4 << 20, 100
KINDS = ("get", "head", "list", "put", "part", "multipart", "copy", "delete")
COLUMNS = ("scale", "workers", "stage", "input", "in x", "scratch x", "out x", "written", "requests",
           "bound", "timed", *KINDS)  # fmt: skip


def upload_source(bucket: str, size: int) -> None:
    """Write a source of at least `size` bytes."""
    client, total, number = boto3.client("s3"), 0, 0
    while total < size:
        content = b""
        while len(content) < FILE_BYTES:
            content += json.dumps({"text": prose(number)}).encode() + b"\n"
            number += 1
        client.put_object(Bucket=bucket, Key=f"source/{total:012d}.jsonl", Body=content)
        total += len(content)


def write_task(directory: Path) -> Path:
    """Write a task of two classes."""
    directory.mkdir()
    lines = [f"{'a good' if n % 2 else 'a bad'} film {n}\t{n % 2}\n" for n in range(64)]
    for split in ("train", "dev"):
        (directory / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    return directory


def stages(base: str, workers: int, task: Path) -> dict[str, tuple[list[str], list[object]]]:
    """Return the inputs and the options of each stage."""
    names = ("corpus", "vocab", "dataset", "pretrain")
    corpus, vocab, dataset, trained = (f"{base}/{name}-{workers}" for name in names)
    several: list[object] = ["--workers", workers]
    training = ["--steps", 20, "--checkpoint-every", 10, "--global-batch", 8, "--device", "cpu"]
    tuning = ["--data", task, "--epochs", 1, "--device", "cpu", "--set", "baselines=false"]
    return {
        "corpus": ([f"{base}/source"], ["--source", f"jsonl={base}/source", *several]),
        "vocab": ([corpus], ["--corpus", corpus, "--size", 2000]),
        "dataset": ([corpus, vocab], ["--corpus", corpus, "--tokenizer", vocab, *several]),
        "pretrain": ([dataset], ["--dataset", dataset, "--model", "bert-tiny", *training]),
        "finetune": ([trained], ["--checkpoint", trained, *tuning]),
    }


def input_bytes(paths: list[str]) -> int:
    files = (storage.join(path, name) for path in paths for name in storage.list_files(path))
    return sum(storage.stat(file)["size"] for file in files if "/_" not in file)


def split_timed(requests: list[Request]) -> tuple[list[Request], list[Request]]:
    """Return the requests that work brought, and those that the passing of time brought.

    A lease is created by one put; each further put is a renewal, which a get precedes. A poll asks
    for cancel.json, in a training also for the fence. A step's results are listed when it begins
    and when it has ended, and every three seconds between.
    """
    renewals = sum("/_lock/" in request.key and request.kind == "put" for request in requests) - 1
    polls = sum(request.key.endswith("/_logs/cancel.json") for request in requests)
    left = {("put", "_lock"): renewals, ("get", "_lock"): renewals}
    left |= {("get", "cancel.json"): polls, ("get", "fence"): polls}
    listings = Counter(request.key for request in requests if request.kind == "list")
    steps = {
        key: n for key, n in listings.items() if "/_scratch/" in key and key[-10:] != "/_scratch/"
    }
    left |= {("list", key): count - 2 for key, count in steps.items()}
    # an empty listing is followed by one of the directory above
    left |= {
        ("list", key): n - len(steps) - 1
        for key, n in listings.items()
        if key[-10:] == "/_scratch/"
    }
    work, timed = [], []
    for request in reversed(requests):
        directory, _, name = request.key.rpartition("/")
        what = request.kind, "_lock" if directory.endswith("/_lock") else name or request.key
        (timed if left.get(what, 0) > 0 else work).append(request)
        left[what] = left.get(what, 0) - 1
    return work, timed


def measured(requests: list[Request], out: str, size: int, workers: int) -> dict[str, Any]:
    """Return the columns of a row."""
    others, timed = split_timed(requests)
    read, written = Counter[str](), Counter[str]()
    for request in others:
        name = request.key.removeprefix(f"{out}/")
        place = "in" if name == request.key else "scratch" if name.startswith("_") else "out"
        read[place] += request.read
        written[place] += request.written
    kinds = Counter(request.kind for request in others)
    return {
        "in x": round(read["in"] / size, 2),
        "scratch x": round(read["scratch"] / max(1, written["scratch"]), 2),
        "out x": round(read["out"] / max(1, written["out"]), 2),
        "written": written.total(),
        "requests": len(others),
        "bound": (read.total() + written.total()) // REQUEST_BYTES + ALLOWANCE * workers,
        "timed": len(timed),
        **{kind: kinds[kind] for kind in KINDS},
    }


def show_detail(requests: list[Request]) -> None:
    counts, sizes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for request in requests:
        what = request.kind, "/".join(p.split("-0")[0] for p in request.key.split("/")[1:])
        counts[what] += 1
        sizes[what] += request.read + request.written
    for what, count in counts.most_common(30):
        print(f"    {count:5d} {sizes[what]:12,d}", *what, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mebibytes", type=float, default=1)
    parser.add_argument("--scales", default="1,4,16")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--stages", default="corpus,vocab,dataset,pretrain,finetune")
    parser.add_argument("--detail", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    print(*COLUMNS, sep="\t")
    with tempfile.TemporaryDirectory() as directory:
        server = CountedServer(Path(directory, "buckets"))
        os.environ |= environment(server.url) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        os.environ["XDG_CACHE_HOME"] = directory
        task = write_task(Path(directory, "SST-2"))
        for scale in map(int, options.scales.split(",")):
            bucket = f"scale-{scale}"
            boto3.client("s3").create_bucket(Bucket=bucket)
            upload_source(bucket, int(scale * options.mebibytes * (1 << 20)))
            for workers in map(int, options.workers.split(",")):
                for stage in options.stages.split(","):
                    inputs, command = stages(f"s3://{bucket}", workers, task)[stage]
                    size, name = input_bytes(inputs), f"{stage}-{workers}"
                    server.requests.clear()
                    words = [stage, *command, "--out", f"s3://{bucket}/{name}"]
                    done = subprocess.run(
                        [warm.python(), "-c", warm.ENTRY, *map(str, words)],
                        capture_output=True,
                        check=False,
                    )
                    if done.returncode:
                        sys.exit(f"{words} failed:\n{done.stderr[-3000:].decode()}")
                    row = {"scale": scale, "workers": workers, "stage": stage, "input": size}
                    row |= measured(list(server.requests), name, size, workers)
                    rows.append(row)
                    print(*(row[column] for column in COLUMNS), sep="\t", flush=True)
                    if options.detail:
                        show_detail(server.requests)
        server.stop()
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
