"""A line of 100 MB is read, or passed over, in little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.test_hostile_input import PROSE, jsonl
from tests.pipeline.corpus.readers.made import HEAD, page, response
from tests.slices import few

SCRIPT = """
import sys
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import ReadCounters
from tests.pipeline.corpus.reading import options_of
from tests.slices import few
kind, path, blank = sys.argv[1:]
reader = READERS.find(kind)
file_slice = reader.slices(path)[0]
tally = ReadCounters(slice=file_slice, stop=False)
more = {"blank_line_documents": True} if blank == "1" else {}
documents = sum(1 for _ in reader.read(file_slice, options_of(reader, stop=False, **more), tally))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(documents, int(peak) >> 10, sorted(tally.counters))
"""


LONG = 100 << 20


@pytest.mark.parametrize(
    ("kind", "name", "before", "after", "blank"),
    few([
        ("jsonl", "a.jsonl", jsonl()[:-1] + b'\n{"text": "', b'"}\n' + jsonl(), "0"),
        ("text", "a.txt", b"One good line.\n\n", b"\n\nAnother good line.\n", "1"),
        ("wikiextractor", "wiki_00", (
            f'<doc id="1" url="" title="T">\n{PROSE}\n</doc>\n<doc id="2" url="" title="U">\n'
        ).encode(), f'\n</doc>\n<doc id="3" url="" title="V">\n{PROSE}\n</doc>\n'.encode(), "0"),
        ("wikipedia", "a.xml", (HEAD + page("A", PROSE) + (
            "<page><title>B</title><ns>0</ns><id>2</id><revision><text>"
        )).encode(), f"</text></revision></page>{page('C', PROSE)}</mediawiki>".encode(), "0"),
        ("warc", "a.warc", response(1) + (
            b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: "
            b"%d\r\n\r\n"
        ) % LONG, b"\r\n\r\n" + response(2), "0"),
    ], "jsonl", "text", "wikipedia"),
)  # fmt: skip
def test_a_line_of_100_mb_in_flat_memory(tmp_path, kind, name, before, after, blank):
    path = tmp_path / name
    with path.open("wb") as sink:
        sink.write(before)
        for _ in range(LONG >> 20):
            sink.write(b"a b c d " * (1 << 17))
        sink.write(after)
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(path), blank],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    documents, megabytes, counters = found.stdout.split(maxsplit=2)
    assert int(documents) == (4 if kind == "jsonl" else 2)
    assert "dropped/too_long" in counters
    assert int(megabytes) < 450, f"{kind} took {megabytes} MB"
