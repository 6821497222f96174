"""Tagged words: files in columns, and the tag schemes BIO, IOB1 and BIOES.

Entities are those of conlleval (CoNLL-2000) in every scheme, even for invalid sequences: an I- or
E- without a preceding entity of its type begins one, and a change of type ends one. The rule is
seqeval's `get_entities`. Tags are converted between schemes via entities, which repairs invalid
tags as conlleval counts them.
"""

from __future__ import annotations

import dataclasses
import itertools
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


def tags_from_entities(spans: Iterable[Entity], words: int, scheme: Scheme) -> list[str]:
    """Return the tags [words] of non-overlapping entities in a scheme."""
    tags = [OUTSIDE] * words
    previous: Entity | None = None
    for kind, first, last in spans:
        neighbours = previous is not None and previous[0] == kind and previous[2] + 1 == first
        tags[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
        if scheme != "IOB1" or neighbours:
            tags[first] = f"B-{kind}"
        if scheme == "BIOES":
            tags[last] = f"S-{kind}" if first == last else f"E-{kind}"
        previous = kind, first, last
    return tags


def count_invalid_tags(
    sentences: Sequence[Sequence[str]], spans: Sequence[Sequence[Entity]], scheme: Scheme
) -> int:
    """Count the tags that are invalid in the scheme: those that change when entities are rewritten.

    Args:
        spans: entities of each sentence.
    """
    return sum(
        tag != valid_tag
        for tags, own in zip(sentences, spans, strict=True)
        for tag, valid_tag in zip(tags, tags_from_entities(own, len(tags), scheme), strict=True)
    )


def detect_scheme(sentences: Sequence[Sequence[str]], spans: Sequence[Sequence[Entity]]) -> Scheme:
    """Return the scheme with the fewest invalid tags; BIO on a tie.

    Args:
        spans: entities of each sentence.
    """
    if any(tag[0] in "ES" for tags in sentences for tag in tags):
        return "BIOES"
    schemes: tuple[Scheme, ...] = ("BIO", "IOB1")
    return min(schemes, key=lambda scheme: count_invalid_tags(sentences, spans, scheme))


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
        label_names: all tags of the model, in BIO, numbered in this order; empty if unknown.
        misplaced: number of tags that are invalid in the scheme; they were read as conlleval does.
        lines: columns of each line of the file; () for a blank line. Empty without a file.
        line_numbers: line number of each word, from 0.
        separator: column separator of the file.
        where: source for messages.
    """

    words: Sequence[Sequence[str]]
    tags: Sequence[Sequence[str]] | None = None
    scheme: Scheme | None = None
    label_names: tuple[str, ...] = ()
    misplaced: int = 0
    lines: Sequence[Sequence[str]] = ()
    line_numbers: Sequence[Sequence[int]] = ()
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
                        f"{self.location(sentence, word)}: the tag's type {tag[2:]!r} is unknown "
                        f"to the model (it has {', '.join(types) or 'none'}); use a file with the "
                        f"types of the training, or ignore its tags with --set "
                        f"options.columns.tag=null"
                    )

    def location(self, sentence: int, word: int) -> str:
        """Return the file and line of a word, for messages."""
        return (
            f"{self.where}, line {self.line_numbers[sentence][word] + 1}"
            if self.line_numbers
            else self.where
        )

    def rows(self, tags: Sequence[Sequence[str]]) -> Iterator[str]:
        """Iterate over the file's lines with an additional column of predicted tags, for conlleval.

        Args:
            tags: predicted tags of each sentence, in BIO.
        """
        scheme = self.scheme or "BIO"
        converted = [
            own if scheme == "BIO" else tags_from_entities(entities(own), len(own), scheme)
            for own in tags
        ]
        if not self.lines:
            for words, predicted in zip(self.words, converted, strict=True):
                yield from map(self.separator.join, zip(words, predicted, strict=True))
                yield ""
            return
        by_line = {
            line_number: tag
            for line_numbers, line_tags in zip(self.line_numbers, converted, strict=True)
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
    sentences: list[list[int]] = []  # line numbers
    new_sentence = True
    for number, columns in enumerate(lines):
        if not columns or columns[0] == DOCUMENT:
            new_sentence = True
            continue
        if new_sentence:
            sentences.append([])
            new_sentence = False
        sentences[-1].append(number)
    if not sentences:
        raise DataError(f"{file} has no sentences; it must have a word and its tag per line")
    width = len(lines[sentences[0][0]])
    word_column = _column(options, "word", 0, width, file)
    for number in itertools.chain.from_iterable(sentences):
        if len(lines[number]) != width:
            raise DataError(
                f"{file}, line {number + 1}: {len(lines[number])} columns, but the lines above "
                f"have {width}; correct the line"
            )
        if not lines[number][word_column]:
            raise DataError(f"{file}, line {number + 1}: the word is empty; remove the line")
    examples = TaggedWords(
        words=[[lines[number][word_column] for number in numbers] for numbers in sentences],
        lines=lines,
        line_numbers=sentences,
        separator=separator,
        where=file,
    )
    tag = options.columns.get("tag", -1)
    if tag is None or tag >= width:  # the file has no tags
        return examples
    tag_column = _column(options, "tag", -1, width, file)
    return examples if tag_column == word_column else _with_tags(examples, tag_column)


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


def _column(options: TaggingOptions, role: str, default: int, width: int, file: str) -> int:
    """Return the number of a role's column, from 0."""
    column = options.columns.get(role, default)
    if column is None or not -width <= column < width:
        raise DataError(
            f"{file} has {width} columns, options.columns.{role} is {column}; name one of 0 to "
            f"{width - 1}"
        )
    return column % width


def _with_tags(examples: TaggedWords, column: int) -> TaggedWords:
    tags = [[examples.lines[number][column] for number in own] for own in examples.line_numbers]
    for sentence, sentence_tags in enumerate(tags):
        for word, tag in enumerate(sentence_tags):
            if not TAG.fullmatch(tag):
                raise DataError(
                    f"{examples.location(sentence, word)}: {tag!r} is not a tag (O, B-, I-, E- or "
                    f"S-, and a type); correct the line, or set the tag column with --set "
                    f"options.columns.tag=NUMBER (null: no tags)"
                )
    spans = [entities(sentence_tags) for sentence_tags in tags]
    scheme = detect_scheme(tags, spans)
    return dataclasses.replace(
        examples,
        tags=[
            tags_from_entities(own, len(sentence_tags), "BIO")
            for sentence_tags, own in zip(tags, spans, strict=True)
        ],
        scheme=scheme,
        misplaced=count_invalid_tags(tags, spans, scheme),
    )
