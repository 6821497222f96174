"""Source `babylm`: the BabyLM challenge's files, such as `childes.train` and `simple_wiki.train`.

A document ends at a blank line, before a heading (`= = = NAME = = =`) or after 1,000 lines, as
subtitles and conversations have neither; a paragraph is a line. Speakers (`*MOT:`, `A:`) and notes
in brackets are left out. Source of the format: babylm/babylm_data_preprocessing (2024).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import (
    FileReader,
    ReadCounters,
    Slice,
    file_patterns,
    has_expected_type,
)
from cloze.pipeline.corpus.readers.plain_text import decode, read_lines
from cloze.pipeline.corpus.readers.streams import as_utf8, open_source, peek

_HEADING = re.compile(rb"(?:= )+(.*?)(?: =)+\s*")
_SPEAKER = re.compile(r"^(?:\*\w{1,8}:|[A-Z]:\t)\s*")
_NOTE = re.compile(r"\s{0,80}\[[^\]]{0,500}\]")  # bounded: a line may be a whole file
_LONGEST_HEADING = 200  # bytes; the pattern takes cubic time
_MOST_LINES = 1000  # of a document

_Raw = tuple[str, int, list[bytes]]  # title, byte offset, lines


class BabylmReader(FileReader):
    """Reader of documents `babylm/<relative file name>/<number from 1>`."""

    kind = "babylm"
    patterns = file_patterns(".train", ".train.txt")

    def read(
        self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters
    ) -> Iterator[Document]:
        """Yield the documents of a file; those that are not text are quarantined."""
        number = 0
        for number, (title, start, lines) in enumerate(self._raw(file_slice, options, tally), 1):
            data = b"\n".join(lines)
            text = decode(data, tally, offset=start)
            if text is None:
                continue
            tally.read(len(data))
            spoken = [_NOTE.sub("", _SPEAKER.sub("", line)).strip() for line in text.split("\n")]
            tally.drop_lines("annotation", spoken.count(""))
            yield Document(
                id=f"{self.kind}/{file_slice.name}/{number}",
                source=self.kind,
                title=title,
                paragraphs=tuple(filter(None, spoken)),
            )
        if not number and not tally.unreadable:
            tally.quarantine("empty_file", "the file is empty")

    def _raw(
        self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters
    ) -> Iterator[_Raw]:
        title, start, lines = "", 0, list[bytes]()
        with contextlib.closing(open_source(file_slice.path)) as source:
            head, unpacked = peek(as_utf8(source))
            if not has_expected_type(head, tally):
                return
            for line in read_lines(unpacked, options.maximum_document_bytes, tally.record_damage):
                if line.data is None:
                    place = f"the line at byte {line.offset:,}"
                    tally.drop_too_long(line.size, place, offset=line.offset)
                    continue
                heading = _HEADING.fullmatch(line.data) if line.size <= _LONGEST_HEADING else None
                blank = not line.data.strip()
                if lines and (heading or blank or len(lines) == _MOST_LINES):
                    yield title, start, lines
                    lines = []
                if heading or blank:
                    title = heading[1].decode("utf-8", "replace") if heading else ""
                    continue
                start = start if lines else line.offset
                lines.append(line.data)
        if lines:
            yield title, start, lines


reader = BabylmReader()
