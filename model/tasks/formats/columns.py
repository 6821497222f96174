"""Tagged words: files in columns, and the tag schemes BIO, IOB1 and BIOES.

Entities are those of conlleval (CoNLL-2000) in every scheme, even for invalid sequences: an I- or
E- without a preceding entity of its type begins one, and a change of type ends one. The rule is
seqeval's `get_entities`. Tags are converted between schemes via entities, which repairs invalid
tags as conlleval counts them.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from seqeval.metrics.sequence_labeling import get_entities

from cloze.core.errors import DataError
from cloze.model.tasks.files import split_file
from cloze.model.tasks.formats.lines import text_lines
from cloze.model.tasks.options import TaggingOptions

Scheme = Literal["BIO", "IOB1", "BIOES"]
Entity = tuple[str, int, int]  # type, first word, last word

OUTSIDE = "O"
TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, in order."""
    if all(tag == OUTSIDE for tag in tags):  # most sentences, if entities are rare
        return []
    return [(str(kind), int(first), int(last)) for kind, first, last in get_entities(list(tags))]


def tags_from_entities(found: Iterable[Entity], words: int, scheme: Scheme) -> list[str]:
    """Return the tags [words] of non-overlapping entities in a scheme."""
    tags = [OUTSIDE] * words
    previous: Entity | None = None
    for kind, first, last in found:
        neighbours = previous is not None and previous[0] == kind and previous[2] + 1 == first
        tags[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
        if scheme != "IOB1" or neighbours:
            tags[first] = f"B-{kind}"
        if scheme == "BIOES":
            tags[last] = f"S-{kind}" if first == last else f"E-{kind}"
        previous = kind, first, last
    return tags


def count_invalid_tags(
    sentences: Sequence[Sequence[str]], found: Sequence[Sequence[Entity]], scheme: Scheme
) -> int:
    """Count the tags that are invalid in the scheme: those that change when entities are rewritten.

    Args:
        found: entities of each sentence.
    """
    rewritten = (
        tags_from_entities(sentence_entities, len(tags), scheme)
        for tags, sentence_entities in zip(sentences, found, strict=True)
    )
    return sum(
        tag != new_tag
        for tags, new_tags in zip(sentences, rewritten, strict=True)
        for tag, new_tag in zip(tags, new_tags, strict=True)
    )


def detect_scheme(sentences: Sequence[Sequence[str]], found: Sequence[Sequence[Entity]]) -> Scheme:
    """Return the scheme with the fewest invalid tags; BIO on a tie.

    Args:
        found: entities of each sentence.
    """
    if any(tag[0] in "ES" for tags in sentences for tag in tags):
        return "BIOES"
    return (
        "IOB1"
        if count_invalid_tags(sentences, found, "IOB1")
        < count_invalid_tags(sentences, found, "BIO")
        else "BIO"
    )


# Files of CoNLL's shared tasks: one word per line, blank lines between sentences, columns separated
# by tabs or spaces.

DOCUMENT = "-DOCSTART-"
SUFFIXES = (".txt", ".conll", ".tsv", ".iob", ".bio")
BLANKS = re.compile("[ \t]+")  # no other spaces: U+00A0, for example, may be part of a word


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWords:
    """Sentences of tagged words, in file order.

    Attributes:
        words: words of each sentence, at least one.
        tags: tags of each sentence in BIO; None for a file without tags.
        scheme: scheme of the file; None without tags.
        misplaced: number of tags that are invalid in the scheme; they were read as conlleval does.
        lines: columns of each line of the file; () for a blank line. Empty without a file.
        places: line number of each word, from 0.
        separator: column separator of the file.
        where: source for messages.
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
        """Count the entities of each type, sorted by type."""
        # Every entity has exactly one B- tag.
        counts = Counter(
            tag[2:] for tags in self.tags or () for tag in tags if tag.startswith("B-")
        )
        return dict(sorted(counts.items()))

    def check(self, types: Sequence[str]) -> None:
        """Check that all entities have one of these types.

        Raises:
            DataError: another type occurs; the message names file and line.
        """
        known_types = set(types)
        for sentence, tags in enumerate(self.tags or ()):
            for word, tag in enumerate(tags):
                if tag != OUTSIDE and tag[2:] not in known_types:
                    raise DataError(
                        f"{self._line(sentence, word)}: the tag's type {tag[2:]!r} is unknown "
                        f"to the model (it has {', '.join(types) or 'none'}); use a file with the "
                        f"types of the training, or ignore its tags with --set "
                        f"options.columns.tag=null"
                    )

    def _line(self, sentence: int, word: int) -> str:
        return (
            f"{self.where}, line {self.places[sentence][word] + 1}" if self.places else self.where
        )

    def rows(self, tags: Sequence[Sequence[str]]) -> Iterator[str]:
        """Iterate over the file's lines with an additional column of predicted tags, for conlleval.

        Args:
            tags: predicted tags of each sentence, in BIO.
        """
        scheme = self.scheme or "BIO"
        converted = [
            tags if scheme == "BIO" else tags_from_entities(entities(tags), len(tags), scheme)
            for tags in tags
        ]
        if not self.lines:
            for words, predicted in zip(self.words, converted, strict=True):
                yield from (
                    f"{word}{self.separator}{tag}"
                    for word, tag in zip(words, predicted, strict=True)
                )
                yield ""
            return
        by_line = {
            line_number: tag
            for line_numbers, line_tags in zip(self.places, converted, strict=True)
            for line_number, tag in zip(line_numbers, line_tags, strict=True)
        }
        for number, columns in enumerate(self.lines):
            yield self.separator.join([*columns, by_line.get(number, OUTSIDE)]) if columns else ""


def read_columns(
    path: str, split: str, options: TaggingOptions, expected_files: str
) -> TaggedWords:
    """Read the sentences of one split, with tags if the file has them.

    Args:
        path: task directory, its parent, or the split's file.
        expected_files: description of the expected files, for messages.

    Raises:
        DataError: the file is missing or malformed, or a tag is not in the scheme; the message
            names file and line.
    """
    file = split_file(path, split, options, SUFFIXES, expected_files)
    separator, lines = _lines(file)
    words: list[list[str]] = []
    line_numbers: list[list[int]] = []
    new_sentence, width = True, 0
    for number, columns in enumerate(lines):
        if not columns or columns[0] == DOCUMENT:
            new_sentence = True
            continue
        width = width or len(columns)
        if len(columns) != width:
            raise DataError(
                f"{file}, line {number + 1}: {len(columns)} columns, but the lines above have "
                f"{width}; correct the line"
            )
        if new_sentence:
            words.append([])
            line_numbers.append([])
            new_sentence = False
        words[-1].append(columns[_column(options, "word", 0, width, file)])
        line_numbers[-1].append(number)
        if not words[-1][-1]:
            raise DataError(f"{file}, line {number + 1}: the word is empty; remove the line")
    if not words:
        raise DataError(f"{file} has no sentences; it must have a word and its tag per line")
    sentences = TaggedWords(
        words=words, lines=lines, places=line_numbers, separator=separator, where=file
    )
    column = _tag_column(options, width, file)
    return sentences if column is None else _with_tags(sentences, column, options)


def _lines(name: str) -> tuple[str, list[tuple[str, ...]]]:
    """Return the separator, a tab if the first text line has one, and the columns of every line."""
    separator, lines = "", list[tuple[str, ...]]()
    for _, line in text_lines(name):
        stripped = line.strip(" \t")
        if stripped:
            separator = separator or ("\t" if "\t" in line else " ")
            columns = line.split("\t") if separator == "\t" else BLANKS.split(stripped)
            lines.append(tuple(columns))
        else:
            lines.append(())
    return separator or " ", lines


def _column(options: TaggingOptions, role: str, usual: int, width: int, name: str) -> int:
    """Return the number of a role's column, from 0."""
    column = options.columns.get(role, usual)
    if column is None or not -width <= column < width:
        raise DataError(
            f"{name} has {width} columns, options.columns.{role} is {column}; name one of 0 to "
            f"{width - 1}"
        )
    return column % width


def _tag_column(options: TaggingOptions, width: int, name: str) -> int | None:
    """Return the number of the tag column; None if the file has none."""
    requested = options.columns.get("tag", -1)
    if requested is None or requested >= width:
        return None
    column = _column(options, "tag", -1, width, name)
    return None if column == _column(options, "word", 0, width, name) else column


def _with_tags(found: TaggedWords, column: int, options: TaggingOptions) -> TaggedWords:
    raw_tags = [
        [found.lines[line_number][column] for line_number in line_numbers]
        for line_numbers in found.places
    ]
    allowed = "O, B- or I-" if options.scheme in ("BIO", "IOB1") else "O, B-, I-, E- or S-"
    for tags, line_numbers in zip(raw_tags, found.places, strict=True):
        for tag, line_number in zip(tags, line_numbers, strict=True):
            if not TAG.fullmatch(tag):
                raise DataError(
                    f"{found.where}, line {line_number + 1}: {tag!r} is not a tag ({allowed}, and "
                    f"a type); correct the line, or set the tag column with --set "
                    f"options.columns.tag=NUMBER (null: no tags)"
                )
            if options.scheme in ("BIO", "IOB1") and tag[0] in "ES":
                raise DataError(
                    f"{found.where}, line {line_number + 1}: the tag {tag!r} is not in the scheme "
                    f"{options.scheme} ({allowed}); use --set options.scheme=BIOES or auto"
                )
    entities_by_sentence = [entities(tags) for tags in raw_tags]
    scheme = (
        detect_scheme(raw_tags, entities_by_sentence)
        if options.scheme == "auto"
        else options.scheme
    )
    return dataclasses.replace(
        found,
        tags=[
            tags_from_entities(sentence_entities, len(tags), "BIO")
            for tags, sentence_entities in zip(raw_tags, entities_by_sentence, strict=True)
        ],
        scheme=scheme,
        misplaced=count_invalid_tags(raw_tags, entities_by_sentence, scheme),
    )
