"""What a corpus costs in a store: opens and bytes grow with the text, not with parts
times shards.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cloze.core import storage
from cloze.pipeline.corpus.read import read_and_clean, sources
from cloze.pipeline.corpus.read.intermediate import IntermediateFile
from cloze.pipeline.corpus.write import write
from tests.pipeline.corpus.corpora import make, prose

FILES, DOCUMENTS = 4, 64


class CountedStore(MemoryFileSystem):
    """Counts, for the parts' documents, how often files are opened and how many bytes are read."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    counts: ClassVar[Counter[str]] = Counter()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(str(path).replace("counted://", "memory://"))

    def _open(self, path: str, mode: str = "rb", **how: Any) -> Any:
        found = super()._open(path, mode=mode, **how)
        name = path.rsplit("/", 1)[-1]
        if mode != "rb" or "/parts/" not in path or name.count(".") > 1:
            return found
        CountedStore.counts["opens"] += 1
        return _Counted(found)


class _Counted:
    """A file that counts what is read of it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._file.read(size)
        CountedStore.counts["bytes"] += len(content)
        return content


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thousandth of the usual sizes."""
    fsspec.register_implementation("counted", CountedStore, clobber=True)
    for module, name, value in (
        (sources, "STORE_GROUP_BYTES", 0),
        (sources, "GROUP_SLICES", 1),
        (read_and_clean, "BATCH_BYTES", 8 << 10),
        (read_and_clean, "CHUNK_DOCUMENTS", 2),
        (write, "BATCH_BYTES", 8 << 10),
        (write, "LEAST_UNITS", 2),
        (write, "MOST_UNITS", 8),
    ):
        monkeypatch.setattr(module, name, value, raising=False)
    yield
    CountedStore.store.clear()


def cost(tmp_path: Path, files: int) -> tuple[Counter[str], int, int]:
    """Make a corpus of so many files in the store; returns what was read of its parts while shards
    were written, their bytes, the shards.
    """
    source = tmp_path / f"source-{files}"
    source.mkdir()
    lines = [json.dumps({"text": prose(n)}) for n in range(files * DOCUMENTS)]
    for number in range(files):
        (source / f"{number}.jsonl").write_text(
            "\n".join(lines[number * DOCUMENTS : (number + 1) * DOCUMENTS]) + "\n"
        )
    out, parts, finish = f"counted://store/corpus-{files}", list[int](), storage.remove

    def kept(path: str) -> None:
        if path.endswith("_scratch"):
            parts.extend(storage.stat(f"{path}/parts/{name}")["size"] for name in storage.list_names(f"{path}/parts")
                         if name.count(".") == 1)  # fmt: skip
        finish(path)

    CountedStore.counts.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "remove", kept)
        made = make(out, f"jsonl={source}", shard_bytes=16 << 10, dedup="none")
    assert len(parts) == files
    return Counter(CountedStore.counts), sum(parts), made.manifest.summary["shards"]


def test_opens_and_bytes_grow_with_the_text(tmp_path: Path) -> None:
    few, few_bytes, few_shards = cost(tmp_path, FILES)
    many, many_bytes, many_shards = cost(tmp_path, 4 * FILES)
    assert few_shards > 10
    assert many_shards > 3.5 * few_shards
    for counts, size, files in ((few, few_bytes, FILES), (many, many_bytes, 4 * FILES)):
        assert counts["bytes"] <= 1.2 * size, f"{counts['bytes'] / size:.1f} times the parts"
        assert counts["opens"] <= 2 * files, f"{counts['opens'] / files:.1f} opens a part"
    assert many["opens"] <= 5 * few["opens"]
    assert many["bytes"] <= 5 * few["bytes"]


def test_a_part_on_a_disk_holds_no_descriptor(tmp_path: Path) -> None:
    """A writer of shards keeps thousands of parts open."""
    import pyarrow as pa

    from cloze.core.arrow import write_arrow

    schema = pa.schema([("a", pa.int64())])
    write_arrow(
        str(tmp_path / "a.arrow"),
        schema,
        [pa.RecordBatch.from_pydict({"a": [1, 2]}, schema=schema)],
    )
    before = set(Path("/proc/self/fd").iterdir())
    with IntermediateFile(str(tmp_path / "a.arrow")) as part:
        assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 1
        assert part.batch(0)["a"].to_pylist() == [1, 2]
