"""What a store is asked for: requests and bytes of each stage, whose inputs and output lie on S3.

    python -m benchmarks.stores [--mebibytes 2] [--scales 1,4,16] [--workers 1,2] [--out table.json]

A server on loopback counts. `source` is JSON lines of invented text in files of half a mebibyte;
every stage then reads the artifact of the one before. Columns:

    input     bytes of the stage's input: of the source, or of the data files of its input artifacts
    read      bytes of objects in the server's answers, and their ratio to `input`
    written   bytes of objects in the requests
    requests  of all kinds, and the bound: (read + written) / 4 MiB + 100 a worker
    get, …    requests by kind; `opens`: how many (object, process) pairs were read, by their number
              of GET requests, is `get` here, since objects are read whole
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

import boto3

from cloze.core import storage
from tests import warm
from tests.object_store import CountedServer, environment
from tests.pipeline.corpus.corpora import prose

FILE_BYTES = 512 << 10
KINDS = ("get", "head", "list", "put", "part", "multipart", "copy", "delete")


def upload_source(bucket: str, size: int) -> int:
    """Write a source of about `size` bytes; return its bytes."""
    client, total, number = boto3.client("s3"), 0, 0
    while total < size:
        lines = []
        while sum(map(len, lines)) < FILE_BYTES:
            lines.append(json.dumps({"text": prose(number)}) + "\n")
            number += 1
        content = "".join(lines).encode()
        client.put_object(Bucket=bucket, Key=f"source/{total:012d}.jsonl", Body=content)
        total += len(content)
    return total


def stages(base: str, workers: int, tasks: Path) -> dict[str, tuple[list[str], list[object]]]:
    """Inputs and command line of each stage."""
    several: list[object] = ["--workers", workers]
    corpus, vocab, dataset, trained = (
        f"{base}/{name}-{workers}" for name in ("corpus", "vocab", "dataset", "pretrain")
    )
    size = ["--steps", 20, "--global-batch", 8, "--model", "bert-tiny", "--device", "cpu"]
    return {
        "corpus": ([f"{base}/source"], ["--source", f"jsonl={base}/source", *several]),
        "vocab": ([corpus], ["--corpus", corpus, "--size", 2000]),
        "dataset": ([corpus], ["--corpus", corpus, "--tokenizer", vocab, *several]),
        "pretrain": ([dataset], ["--dataset", dataset, *size, "--checkpoint-every", 10]),
        "finetune": (
            [trained],
            ["--checkpoint", trained, "--data", tasks, "--device", "cpu", "--epochs", 1],
        ),
    }


def input_bytes(paths: list[str]) -> int:
    return sum(
        storage.stat(storage.join(path, name))["size"]
        for path in paths
        for name in storage.list_files(path)
        if not name.split("/")[0].startswith("_")
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mebibytes", type=float, default=2)
    parser.add_argument("--scales", default="1,4,16")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--stages", default="corpus,vocab,dataset,pretrain,finetune")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    buckets = tempfile.TemporaryDirectory(dir="/dev/shm")
    server = CountedServer(Path(buckets.name))
    os.environ |= environment(server.url) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    rows = []
    print("scale workers stage", "input read ratio written requests bound", *KINDS, sep="\t")
    with tempfile.TemporaryDirectory() as directory:
        tasks = Path(directory) / "SST-2"
        tasks.mkdir()
        lines = [f"{'a good' if n % 2 else 'a bad'} film {n}\t{n % 2}\n" for n in range(64)]
        for split in ("train", "dev"):
            (tasks / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
        os.environ["XDG_CACHE_HOME"] = directory
        for scale in map(int, options.scales.split(",")):
            bucket = f"scale-{scale}"
            boto3.client("s3").create_bucket(Bucket=bucket)
            upload_source(bucket, int(scale * options.mebibytes * (1 << 20)))
            for workers in map(int, options.workers.split(",")):
                plan = stages(f"s3://{bucket}", workers, tasks)
                for stage in options.stages.split(","):
                    inputs, command = plan[stage]
                    size = input_bytes(inputs)
                    server.requests.clear()
                    out = f"s3://{bucket}/{stage}-{workers}"
                    done = subprocess.run(
                        [warm.python(), "-c", warm.ENTRY, stage, *map(str, command), "--out", out,
                         *(f"--set={each}" for each in options.set if stage == "corpus")],
                        capture_output=True, check=False, cwd=directory,
                    )  # fmt: skip
                    if done.returncode:
                        sys.exit(f"{command} failed:\n{done.stderr[-3000:].decode()}")
                    total = server.totals()
                    bound = (total["read"] + total["written"]) // (4 << 20) + 100 * workers
                    row = {
                        "scale": scale, "workers": workers, "stage": stage, "input": size,
                        "read": total["read"], "written": total["written"],
                        "requests": total["requests"], "bound": bound,
                        **{kind: total[kind] for kind in KINDS},
                    }  # fmt: skip
                    rows.append(row)
                    print(
                        f"{scale}\t{workers}\t{stage}\t{size:,}\t{total['read']:,}"
                        f"\t{total['read'] / size:.2f}\t{total['written']:,}"
                        f"\t{total['requests']}\t{bound}",
                        *(total[kind] for kind in KINDS), sep="\t", flush=True,
                    )  # fmt: skip
                    if os.environ.get("STORES_DETAIL"):
                        detail = Counter(
                            (r.kind, "/".join(p.split("-0")[0] for p in r.key.split("/")[1:]))
                            for r in server.requests
                        )
                        size_by = Counter()
                        for r in server.requests:
                            size_by[
                                r.kind, "/".join(p.split("-0")[0] for p in r.key.split("/")[1:])
                            ] += r.read + r.written
                        for key, count in detail.most_common(25):
                            print("     ", count, size_by[key], *key, flush=True)
    server.stop()
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
