"""Words in columns, as CoNLL's shared tasks have them: a line a word, a blank line between sentences, tabs or spaces between columns.

`-DOCSTART-` lines stand between documents; they are no sentences. Whatever scheme a file's tags are in, examples have theirs in BIO;
what is written goes back into the file's own.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from model.tasks.formats.schemes import OUTSIDE, TAG, Scheme, entities, misplaced, recognised, tagged
from model.tasks.formats.splits import split_file
from model.tasks.options import TaggingOptions
from pipeline.core import storage
from pipeline.core.errors import DataError

DOCUMENT = "-DOCSTART-"
SUFFIXES = (".txt", ".conll", ".tsv", ".iob", ".bio")
BLANKS = re.compile("[ \t]+")  # no other space: one such as U+00A0 may stand in a word


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWords:
    """Sentences of words with a tag each, in the order of their file.

    Attributes:
        words: of each sentence, at least one.
        tags: of each sentence, in BIO; None for a file without tags.
        scheme: that of the file; None where nothing tells.
        misplaced: how many of the file's tags stand where its scheme does not allow them; they were read as conlleval does.
        lines: the file's, in columns; () is a blank one. Empty where there is no file.
        places: of each word the number of its line, from 0.
        separator: of the file's columns.
        where: what was read, for messages.
    """

    words: Sequence[Sequence[str]]
    tags: Sequence[Sequence[str]] | None = None
    scheme: Scheme | None = None
    misplaced: int = 0
    lines: Sequence[Sequence[str]] = ()
    places: Sequence[Sequence[int]] = ()
    separator: str = " "
    dropped: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    def __len__(self) -> int:
        return len(self.words)

    @property
    def labelled(self) -> bool:
        return self.tags is not None

    def types(self) -> dict[str, int]:
        """How many entities there are of each type, in the order of the alphabet."""
        counts = Counter(tag[2:] for tags in self.tags or () for tag in tags if tag.startswith("B-"))  # every entity has one
        return dict(sorted(counts.items()))

    def check(self, types: Sequence[str]) -> None:
        """Refuse entities of other types than these.

        Raises:
            DataError: there is one; the message names file and line.
        """
        known = set(types)
        for number, tags in enumerate(self.tags or ()):
            for place, tag in enumerate(tags):
                if tag != OUTSIDE and tag[2:] not in known:
                    told = ", ".join(types) or "none"
                    raise DataError(
                        f"{self._line(number, place)}: the tag's type {tag[2:]!r} is none that was trained ({told}); take the file"
                        " that belongs to the training, or say that it has no tags with --set options.columns.tag=null"
                    )

    def _line(self, sentence: int, word: int) -> str:
        return f"{self.where}, line {self.places[sentence][word] + 1}" if self.places else self.where

    def rows(self, tags: Sequence[Sequence[str]]) -> Iterator[str]:
        """The file's lines with a column more, what is predicted: readable by conlleval.

        Args:
            tags: of each word, in BIO.
        """
        scheme = self.scheme or "BIO"
        written = [tags if scheme == "BIO" else tagged(entities(tags), len(tags), scheme) for tags in tags]
        if not self.lines:
            for words, predicted in zip(self.words, written, strict=True):
                yield from (f"{word}{self.separator}{tag}" for word, tag in zip(words, predicted, strict=True))
                yield ""
            return
        by_line = {
            line: tag for lines, own in zip(self.places, written, strict=True) for line, tag in zip(lines, own, strict=True)
        }
        for number, columns in enumerate(self.lines):
            yield self.separator.join([*columns, by_line.get(number, OUTSIDE)]) if columns else ""


def read_columns(path: str, split: str, options: TaggingOptions, told: str) -> TaggedWords:
    """The sentences of one split, with their tags where the file has them.

    Args:
        path: the task's directory, the one above it, or the split's file.
        told: what the task reads, for messages.

    Raises:
        DataError: the file is missing or malformed, or a tag is none of the scheme; the message names file and line.
    """
    name = split_file(path, split, options, SUFFIXES, told)
    separator, lines = _lines(name)
    words: list[list[str]] = []
    places: list[list[int]] = []
    fresh, width = True, 0
    for number, columns in enumerate(lines):
        if not columns or columns[0] == DOCUMENT:
            fresh = True
            continue
        width = width or len(columns)
        if len(columns) != width:
            raise DataError(
                f"{name}, line {number + 1}: {len(columns)} columns where the lines before it have {width}; mend the line"
            )
        if fresh:
            words.append([])
            places.append([])
            fresh = False
        words[-1].append(columns[_column(options, "word", 0, width, name)])
        places[-1].append(number)
        if not words[-1][-1]:
            raise DataError(f"{name}, line {number + 1}: the word is empty; remove the line")
    if not words:
        raise DataError(f"{name} holds no sentences; it must hold a word and its tag a line")
    found = TaggedWords(words=words, lines=lines, places=places, separator=separator, where=name)
    column = _tag_column(options, width, name)
    return found if column is None else _with_tags(found, column, options)


def _lines(name: str) -> tuple[str, list[tuple[str, ...]]]:
    """What separates the columns, a tab if the first line that has some holds one; and the columns of every line."""
    with storage.open_input(name) as handle:
        content = handle.read().removeprefix(b"\xef\xbb\xbf")
    separator, lines = "", list[tuple[str, ...]]()
    for number, raw in enumerate(content.split(b"\n"), start=1):
        if b"\0" in raw:
            raise DataError(f"{name}, line {number}: a NUL byte; the file is damaged or in UTF-16, convert it to UTF-8")
        try:
            line = raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}, line {number}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8") from error
        if not line.strip(" \t"):
            lines.append(())
            continue
        separator = separator or ("\t" if "\t" in line else " ")
        columns = line.split("\t") if separator == "\t" else BLANKS.split(line.strip(" \t"))
        lines.append(tuple(columns))
    if not lines[-1]:  # what follows the last line end
        lines.pop()
    return separator or " ", lines


def _column(options: TaggingOptions, role: str, usual: int, width: int, name: str) -> int:
    """The number of a role's column, from 0."""
    asked = options.columns.get(role, usual)
    if asked is None or not -width <= asked < width:
        raise DataError(f"{name} has {width} columns, options.columns.{role} is {asked}; name one of 0 to {width - 1}")
    return asked % width


def _tag_column(options: TaggingOptions, width: int, name: str) -> int | None:
    """The number of the tags' column; None: the file ends before it, or has words alone."""
    asked = options.columns.get("tag", -1)
    if asked is None or asked >= width:
        return None
    column = _column(options, "tag", -1, width, name)
    return None if column == _column(options, "word", 0, width, name) else column


def _with_tags(found: TaggedWords, column: int, options: TaggingOptions) -> TaggedWords:
    read = [[found.lines[line][column] for line in lines] for lines in found.places]
    allowed = "O, B- or I-" if options.scheme in ("BIO", "IOB1") else "O, B-, I-, E- or S-"
    for tags, lines in zip(read, found.places, strict=True):
        for tag, line in zip(tags, lines, strict=True):
            if not TAG.fullmatch(tag):
                raise DataError(
                    f"{found.where}, line {line + 1}: {tag!r} is no tag ({allowed}, and a type); mend the line, or name the column"
                    " of the tags with --set options.columns.tag=NUMBER (null: there is none)"
                )
            if options.scheme in ("BIO", "IOB1") and tag[0] in "ES":
                raise DataError(
                    f"{found.where}, line {line + 1}: the tag {tag!r} is none of the scheme {options.scheme} ({allowed});"
                    " use --set options.scheme=BIOES or auto"
                )
    own = [entities(tags) for tags in read]
    scheme = recognised(read, own) if options.scheme == "auto" else options.scheme
    return dataclasses.replace(
        found,
        tags=[tagged(of, len(tags), "BIO") for tags, of in zip(read, own, strict=True)],
        scheme=scheme,
        misplaced=misplaced(read, own, scheme),
    )
