"""Text of some GB through a Flink cluster and a store, with a task manager killed in each step.

    FLINK_DOWNLOADS=downloads python -m benchmarks.data_cluster --megabytes 60 --directory DIR
        [--stages corpus,vocab,dataset] [--no-kills] [--local]

Books are cut into sentences, and these are drawn anew into documents; a fifth of the documents are
another one with a sentence replaced. Their JSON lines, and all artifacts, are on a counting S3
server. `infra/flink/cluster.sh` starts two task managers with a pool each, and `cloze corpus`,
`vocab` and `dataset` run there. In each step of `KILLED` a task manager is killed when a unit is
done, and started again, as an operator does. `--local` runs the same on this machine's disk; files
of both are compared by their SHA-256.

    read, wrote   bytes of objects in the server's answers and requests
    ranges        requests for ranges of runs, and how many pieces of 64 KB these have
    others        requests besides, and their megabytes, read and written
    timed         what time brings and `others` leaves out: the lease, progress
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import psutil

from benchmarks.stores import split_timed
from tests.object_store import CountedServer, Request, environment
from tests.pipeline.runners.conftest import ENGINES, Cluster, merged, started
from tests.warm import ENTRY

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "books"
FILE_BYTES, SENTENCES, PARAGRAPH, NEAR, MEMORY = 64 << 20, 28, 5, 0.2, 4000
RESULT = re.compile(r"(\w+)/_scratch/([^/]+)/(?:\d+/)?([^/]+)\.json")
RUN = re.compile(r"/run-\d+$")
KILLED = re.compile(r"read|dedup-.*-(values|links)|sort|write|rank|take|rows|shards")
RECIPE = ("--recipe", "roberta", "--length", "512")  # as docs/how-to/beam-runners.md has it
GRACE = 3.0  # seconds until a killed task manager is started again


def sentences() -> list[bytes]:
    """Return the books' sentences, as the inside of a JSON string."""
    found: list[bytes] = []
    for path in sorted(DATA.rglob("*.txt")):
        text = " ".join(path.read_text("utf-8", "replace").split())
        cut = re.split(r"(?<=[.!?]) (?=[A-Z])", text)
        found += [json.dumps(one)[1:-1].encode() for one in cut if 40 <= len(one) <= 300]
    return found


def write_text(directory: Path, size: int, seed: int = 11) -> Counter[str]:
    """Write JSON lines of about `size` bytes; return the documents and near duplicates in them."""
    known, draw, counts = sentences(), random.Random(seed), Counter[str]()
    kept: list[list[bytes]] = []
    number = 0
    while counts["bytes"] < size:
        with (directory / f"text-{number:04d}.jsonl").open("wb") as file:
            while file.tell() < min(FILE_BYTES, size - counts["bytes"]):
                if kept and draw.random() < NEAR:
                    chosen = list(draw.choice(kept))
                    chosen[draw.randrange(len(chosen))] = draw.choice(known)
                    counts["near duplicates"] += 1
                else:
                    chosen = draw.choices(known, k=draw.randint(SENTENCES // 2, 2 * SENTENCES))
                    if len(kept) < MEMORY:
                        kept.append(chosen)
                    else:
                        kept[draw.randrange(MEMORY)] = chosen
                pieces = range(0, len(chosen), PARAGRAPH)
                text = rb"\n\n".join(b" ".join(chosen[n : n + PARAGRAPH]) for n in pieces)
                file.write(b'{"text": "%b"}\n' % text)
                counts["documents"] += 1
            counts["bytes"] += file.tell()
        number += 1
    return counts


class Killer:
    """Kills a task manager in each step, and starts it again; it hears of all requests."""

    def __init__(self) -> None:
        self.killed: dict[str, tuple[str, float]] = {}
        self._asked: queue.SimpleQueue[tuple[str, Cluster] | None] = queue.SimpleQueue()
        self.cluster: Cluster | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __call__(self, kind: str, key: str, number: int) -> None:
        """Be asked for a fault by the server: there is none."""
        found = RESULT.match(key) if kind == "put" and self.cluster else None
        if found and KILLED.fullmatch(found[2]):
            step = f"{found[1]} {found[2]}"
            kinds = {name.rpartition("-")[2] for name in self.killed}
            if step not in self.killed and step.rpartition("-")[2] not in kinds:
                victim = f"taskmanager-{len(self.killed) % 2 + 1}"
                self.killed[step] = victim, time.time()
                assert self.cluster is not None
                self._asked.put((victim, self.cluster))

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            victim, cluster = asked
            note = cluster.directory / "pids" / victim
            process = psutil.Process(cluster.process(victim))
            command, variables, place = process.cmdline(), process.environ(), process.cwd()
            process.kill()
            print(f"    killed {victim} ({process.pid})", flush=True)
            time.sleep(GRACE)
            with (cluster.directory / "log" / f"{victim}.out").open("ab") as log:
                begun = subprocess.Popen(
                    command,
                    env=variables,
                    cwd=place,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            stat = Path(f"/proc/{begun.pid}/stat").read_text()
            note.write_text(f"{begun.pid} {stat.rpartition(') ')[2].split()[19]}\n")
            threading.Thread(target=begun.wait, daemon=True).start()


def commands(text: str, base: str) -> dict[str, list[str]]:
    """Return the words of each stage."""
    corpus, vocab, dataset = (f"{base}/{name}" for name in ("corpus", "vocab", "dataset"))
    return {
        "corpus": ["--source", f"jsonl={text}", "--out", corpus],
        "vocab": ["--corpus", corpus, "--size", "16000", "--out", vocab],
        "dataset": ["--corpus", corpus, "--tokenizer", vocab, *RECIPE, "--out", dataset],
    }


def run(words: list[str], log: Path) -> dict[str, Any]:
    """Run a command to its end; return the manifest's figures and the seconds."""
    began, before = time.time(), os.times()
    with log.open("wb") as stream:
        done = subprocess.run(
            [sys.executable, "-c", ENTRY, *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=stream,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{words} failed:\n{log.read_text(errors='replace')[-4000:]}")
    after = os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    return {**json.loads(done.stdout), "wall": time.time() - began, "cpu": used}


def steps(requests: list[Request], stage: str) -> Iterator[tuple[str, int, list[Request]]]:
    """Yield each step, its number of units, and its requests: from its first listing to the next.

    What comes before a stage's first step belongs to the first, what comes after to the last.
    """
    results = [RESULT.match(r.key) for r in requests if r.kind == "put" and r.status == 200]
    units = Counter(m[2] for m in set(filter(None, results)) if m[1] == stage)
    first: dict[str, int] = {}
    for number, request in enumerate(requests):
        found = re.match(rf"{stage}/_scratch/([^/]+)/?$", request.key)
        if request.kind == "list" and found and found[1] in units:
            first.setdefault(found[1], number)
    edges = sorted((number, step) for step, number in first.items())
    if not edges:
        yield "all", 0, requests
    for place, (number, step) in enumerate(edges):
        end = edges[place + 1][0] if place + 1 < len(edges) else len(requests)
        yield step, units[step], requests[number if place else 0 : end]


def row(step: str, units: int, requests: list[Request]) -> dict[str, Any]:
    """Return what a step asked for; bytes of an exchange are apart."""
    others, timed = split_timed(requests)
    moved = [r for r in others if RUN.search(r.key) and r.kind == "get"]
    rest = [r for r in others if not (RUN.search(r.key) and r.kind == "get")]
    read, wrote = sum(r.read for r in others), sum(r.written for r in others)
    pieces = sum(r.read for r in moved) / (64 << 10)
    kinds = Counter(r.kind for r in rest)
    return {
        "step": step,
        "units": units,
        "read MB": round(read / 1e6, 1),
        "wrote MB": round(wrote / 1e6, 1),
        "ranges": len(moved),
        "of 64 KB": round(pieces),
        "others": len(rest),
        "MB": round((read + wrote - sum(r.read for r in moved)) / 1e6, 1),
        "timed": len(timed),
        **{kind: kinds[kind] for kind in ("get", "head", "list", "put", "part", "multipart")},
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for one in rows:
        print("| " + " | ".join(str(value) for value in one.values()) + " |", flush=True)


def hashes(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each data file of the stages below the directory."""
    found = {}
    for path in sorted(directory.glob("*/**/*.arrow")) + sorted(directory.glob("vocab/*.*")):
        name = path.relative_to(directory).as_posix()
        if "/_" not in name and not name.endswith(("manifest.json", ".html")):
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=60)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--stages", default="corpus,vocab,dataset")
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--local", action="store_true", help="only the run on this disk")
    options = parser.parse_args()
    place: Path = options.directory.resolve()
    text = place / "store" / "bucket" / "text"
    if not text.is_dir():
        text.mkdir(parents=True)
        print(dict(write_text(text, int(options.megabytes * 1e6))), flush=True)
    (place / "tmp").mkdir(exist_ok=True)
    os.environ |= {"TMPDIR": str(place / "tmp"), "XDG_CACHE_HOME": str(place / "cache")}
    tempfile.tempdir = None
    wanted = options.stages.split(",")
    if options.local:
        for stage, words in commands(str(text), str(place / "local")).items():
            if stage in wanted:
                several = ["--workers", "2"] if stage != "vocab" else []
                done = run([stage, *words, *several], place / f"local-{stage}.log")
                print(f"local {stage}: {done['wall']:.0f} s, {done['cpu']:.0f} CPU s", flush=True)
        return
    jar = place / "job-server.jar"
    if not jar.exists():
        merged(sorted(ENGINES.glob("beam-runner-flink-*"))[-1], jar)
    killer, server = Killer(), CountedServer(place / "store")
    server.fault = killer
    server._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # killed clients
    os.environ |= environment(server.url) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with contextlib.suppress(boto3.client("s3").exceptions.BucketAlreadyOwnedByYou):
        boto3.client("s3").create_bucket(Bucket="bucket")
    rows = []
    with started(place / "cluster", str(jar)) as cluster:
        for stage, words in commands("s3://bucket/text", "s3://bucket").items():
            if stage not in wanted:
                continue
            killer.cluster = None if options.no_kills else cluster
            server.requests.clear()
            exchanged = ["--set", "run.dedup_in_memory_documents=1000"] * (stage == "corpus")
            done = run([stage, *words, *cluster.options, *exchanged], place / f"{stage}.log")
            killer.cluster = None
            print(f"{stage}: {done['wall']:.0f} s", json.dumps(done)[:1500], flush=True)
            seen = list(server.requests)
            (place / f"{stage}-requests.json").write_text(json.dumps(seen))
            rows += [row(f"{stage} {step}", n, part) for step, n, part in steps(seen, stage)]
            show(rows)
    print("killed:", killer.killed)
    server.stop()
    ours, theirs = hashes(place / "local"), hashes(place / "store" / "bucket")
    same = sum(ours[name] == theirs.get(name) for name in ours)
    print(f"{len(ours)} files of the local run, {len(theirs)} of the cluster's, {same} equal")


if __name__ == "__main__":
    main()
