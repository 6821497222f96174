"""Tagged words: files in columns, CoNLL-U, and tables of the Hub; tag_schemes.py has the tags."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cloze.core.errors import DataError
from cloze.core.label_metrics import ENTITY_TAG
from cloze.model.tasks.files import split_files
from cloze.model.tasks.formats.lines import text_lines
from cloze.model.tasks.formats.table_files import as_label, as_text, open_tables
from cloze.model.tasks.formats.tag_schemes import (
    OUTSIDE,
    UNTYPED,
    Scheme,
    count_invalid_tags,
    detect_scheme,
    entities,
    tags_from_entities,
)
from cloze.model.tasks.options import TableOptions, TaggingOptions

# Files of CoNLL's shared tasks: one word per line, blank lines between sentences, columns separated
# by tabs or spaces.

# First column of a line between documents: CoNLL-2003, JNLPBA, CoNLL-U, OntoNotes.
DOCUMENT = re.compile(
    r"-DOCSTART-( .*)?|###MEDLINE:\d+|# newdoc\b.*|#(begin|end)( document .*)?", re.DOTALL
)
CONLLU, BLANKED = ".conllu", "_"
TABLES = (".parquet", ".arrow")
ROW_TAGS = ("ner_tags", "tags", "labels")  # names that data sets of the Hub give to the tags
SUFFIXES = (".txt", ".conll", ".tsv", ".iob", ".bio", CONLLU)
BLANKS = re.compile("[ \t]+")  # no other spaces: U+00A0, for example, may be part of a word


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWords:
    """Sentences of tagged words, in file order.

    Attributes:
        words: words of each sentence, at least one.
        tags: tags of each sentence, in BIO or plain; None for a file without tags.
        scheme: scheme of the file; None without tags.
        label_names: all tags of the model, in BIO or plain, numbered in this order; empty if
            unknown.
        documents: number of each document's first sentence; empty if unknown.
        misplaced: number of tags that are invalid in the scheme; they were read as conlleval does.
        lines: columns of each line of the file; () for a blank line. Empty without a file.
        line_numbers: line number of each word, from 0.
    """

    words: Sequence[Sequence[str]]
    tags: Sequence[Sequence[str]] | None = None
    scheme: Scheme | None = None
    label_names: tuple[str, ...] = ()
    documents: Sequence[int] = ()
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
        """Count the entities of each type, or the words of each plain label, sorted by name."""
        tags = itertools.chain.from_iterable(self.tags or ())
        if self.scheme == "plain":
            return dict(sorted(Counter(tags).items()))
        # Every entity has exactly one B- tag.
        return dict(sorted(Counter(tag[2:] for tag in tags if tag.startswith("B-")).items()))

    def labels(self) -> list[str]:
        """Return the labels of a model for these words: those that occur, or BIO of all types."""
        if self.scheme == "plain":
            return list(self.types())
        return [OUTSIDE, *(f"{prefix}-{kind}" for kind in self.types() for prefix in "BI")]

    def check(self, labels: Sequence[str]) -> int:
        """Return the number of entities, or of words with plain labels, that a model cannot find.

        They count as errors of the model, as for the authors of such data: small sets have types
        and labels that only one split has.

        Raises:
            DataError: the model has none of the types or labels; the message names file and line.
        """
        plain, types = self.scheme == "plain", self.types()
        names = labels if plain else [name[2:] for name in labels if name[:2] == "B-"]
        unknown = types.keys() - set(names)
        if not unknown or types.keys() & set(names):
            return sum(types[name] for name in unknown)
        sentence, word = next(
            (sentence, word)
            for sentence, tags in enumerate(self.tags or ())
            for word, tag in enumerate(tags)
            if tag not in {*labels, OUTSIDE} or (plain and tag not in labels)
        )
        tag = (self.tags or ())[sentence][word]
        what = f"label {tag!r}" if plain else f"tag's type {tag[2:]!r}"
        raise DataError(
            f"{self.location(sentence, word)}: the {what} is unknown to the model (it has "
            f"{', '.join(names) or 'none'}), and so are all others; use a file with the types of "
            f"the training, or ignore its tags with --set options.columns.tag=null"
        )

    def location(self, sentence: int, word: int) -> str:
        """Return the file and line of a word, for messages."""
        return (
            f"{self.where}, {'line' if self.lines else 'row'} "
            f"{self.line_numbers[sentence][word] + 1}"
            if self.line_numbers
            else self.where
        )

    def rows(self, tags: Sequence[Sequence[str]]) -> Iterator[str]:
        """Iterate over the file's lines with an additional column of predicted tags, for conlleval.

        Comments stay as they are; other lines without a word get O, or _ with plain labels.

        Args:
            tags: predicted tags of each sentence, in BIO or plain.
        """
        scheme = self.scheme or "BIO"
        converted = list(tags)
        if scheme != "plain":
            typed = converted
            if scheme != "BIO":
                typed = [tags_from_entities(entities(own), len(own), scheme) for own in tags]
            converted = [[tag.removesuffix(UNTYPED) for tag in own] for own in typed]
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
        missing = "_" if scheme == "plain" else OUTSIDE
        for number, columns in enumerate(self.lines):
            is_comment = number not in by_line and "".join(columns[:1]).startswith("#")
            added = () if is_comment or not columns else (by_line.get(number, missing),)
            yield self.separator.join([*columns, *added])


def read_columns(
    path: str, split: str, options: TaggingOptions, expected_files: str
) -> TaggedWords:
    """Read the sentences of one split, with tags if the file has them.

    Raises:
        DataError: the file is missing or malformed, or a tag is not in the scheme; the message
            names file and line. With context `document`: the file marks no documents.
    """
    files = split_files(path, split, options, (*SUFFIXES, *TABLES), expected_files)
    file = files[0]
    if file.endswith(TABLES):
        return _read_rows(files, options)
    separator, lines = _lines(file)
    sentences: list[list[int]] = []  # line numbers
    documents: list[int] = []
    width = next((len(own) for own in lines if own and own[0] != "#" and not _is_mark(own)), 0)
    new_sentence = True
    for number, columns in enumerate(lines):
        if columns and _is_mark(columns):
            documents.append(len(sentences))
            columns = ()
        if not columns:
            new_sentence = True
            continue
        if file.endswith(CONLLU) and not columns[0].isdecimal():
            continue  # a comment, a token of several words, or an empty node
        if new_sentence and _is_comment(columns, width):
            continue
        if new_sentence:
            sentences.append([])
            new_sentence = False
        sentences[-1].append(number)
    if not sentences:
        raise DataError(f"{file} has no sentences; it must have a word and its tag per line")
    if options.context == "document" and not documents:
        raise DataError(
            f"{file} marks no documents (by lines such as -DOCSTART-), which the context (document)"
            f" needs; use --set options.context=sentence"
        )
    if file.endswith(CONLLU):
        _check_ids(file, lines, sentences)
    width = len(lines[sentences[0][0]])
    word_column = _column(options, "word", 0, width, file)
    for number in itertools.chain.from_iterable(sentences):
        if len(lines[number]) != width:  # blanks for tabs, or tabs at the end
            parts = BLANKS.split(separator.join(lines[number]).strip(" \t"))
            lines[number] = tuple(parts) if len(parts) == width else lines[number]
        if len(lines[number]) != width:
            raise DataError(
                f"{file}, line {number + 1}: {len(lines[number])} columns, but the lines above "
                f"have {width}; correct the line"
            )
        if not lines[number][word_column]:
            raise DataError(f"{file}, line {number + 1}: the word is empty; remove the line")
    words = [[lines[number][word_column] for number in numbers] for numbers in sentences]
    if file.endswith(CONLLU) and {*itertools.chain.from_iterable(words)} == {BLANKED}:
        raise DataError(
            f"{file} has no words (all are _), as treebanks whose text may not be passed on; "
            f"add them with the treebank's own script"
        )
    examples = TaggedWords(
        words=words,
        lines=lines,
        line_numbers=sentences,
        documents=sorted({0, *documents} - {len(sentences)}) if documents else (),
        separator=separator,
        where=file,
    )
    tag = options.columns.get("tag", -1)
    if tag is None or (isinstance(tag, int) and tag >= width):  # the file has no tags
        return examples
    tag_column = _column(options, "tag", -1, width, file)
    if tag_column == word_column:
        return examples
    tags = [[lines[number][tag_column] for number in numbers] for numbers in sentences]
    return _with_tags(examples, tags, options)


def _check_ids(
    file: str, lines: Sequence[Sequence[str]], sentences: Sequence[Sequence[int]]
) -> None:
    """Raise DataError if words are not numbered through: sentences are joined, or one is cut."""
    for before, number in itertools.chain.from_iterable(map(itertools.pairwise, sentences)):
        if int(lines[number][0]) != int(lines[before][0]) + 1:
            raise DataError(
                f"{file}, line {number + 1}: the word's id is {lines[number][0]} after "
                f"{lines[before][0]}; separate sentences by an empty line, or restore the words"
            )


def _read_rows(files: Sequence[str], options: TaggingOptions) -> TaggedWords:
    """Read sentences from tables with a list of words and a list of tags per row."""
    table = open_tables(files, TableOptions())
    if options.context == "document":
        raise DataError(f"{files[0]} marks no documents; use --set options.context=sentence")
    default = next((name for name in ROW_TAGS if name in table.columns), ROW_TAGS[0])
    names = [options.columns.get("word", "tokens"), options.columns.get("tag", default)]
    named = [str(name) for name in names if name is not None]
    indices = table.indices(named)
    sentences: list[list[list[str]]] = []
    rows: list[int] = []
    for number, (location, values) in enumerate(table.rows):
        lists = [values[index] for index in indices]
        for name, own in zip(named, lists, strict=True):
            if not isinstance(own, list) or len(own) != len(lists[0]):
                raise DataError(
                    f"{location}: the {name} must be a list, with an entry for each word of "
                    f"{named[0]}; name other columns with --set 'options={{columns: {{word: …, "
                    f"tag: …}}}}'"
                )
        texts = [[as_text(value, location, named[0]) for value in own] for own in lists]
        if not all(map(str.strip, texts[0])):
            raise DataError(f"{location}: a word of {named[0]} is empty; remove the row")
        if texts[0]:
            sentences.append(texts)
            rows.append(number)
        else:
            table.dropped["empty_row"] += 1
    examples = TaggedWords(
        words=[own[0] for own in sentences],
        line_numbers=[[row] * len(own[0]) for row, own in zip(rows, sentences, strict=True)],
        dropped=dict(table.dropped),
        where=files[0],
    )
    if len(named) == 1:
        return examples
    return _with_tags(examples, [own[1] for own in sentences], options)


def _is_mark(columns: Sequence[str]) -> bool:
    """Return whether a line is between documents."""
    return DOCUMENT.fullmatch(columns[0]) is not None


def _is_comment(columns: Sequence[str], width: int) -> bool:
    """Return whether a line before a sentence is a comment, such as `# id 7`, and not the word #.

    A comment may have as many columns as the words; it then has a name and a value.
    """
    if columns[0] == "#":
        return len(columns) != width or any("=" in column for column in columns[1:])
    return columns[0].startswith("# ") and len(columns) == 1


def _lines(name: str) -> tuple[str, list[tuple[str, ...]]]:
    """Return the separator, a tab if the first word's line has one, and the columns of all lines.

    CoNLL-U has tabs, also after comments that have none.
    """
    separator, lines = "\t" if name.endswith(CONLLU) else "", list[tuple[str, ...]]()
    for _, line in text_lines(name):
        stripped = line.strip(" \t")
        if stripped:
            if not separator and not DOCUMENT.fullmatch(BLANKS.split(stripped)[0]):
                separator = "\t" if "\t" in line else " "
            is_tab = separator == "\t"
            columns = line.split("\t") if is_tab else BLANKS.split(stripped)
            lines.append(tuple(column.strip(" ") for column in columns))
        else:
            lines.append(())
    return separator or " ", lines


def _column(options: TaggingOptions, role: str, default: int, width: int, file: str) -> int:
    """Return the number of a role's column, from 0."""
    column = options.columns.get(role, default)
    if not isinstance(column, int) or not -width <= column < width:
        raise DataError(
            f"{file} has {width} columns, options.columns.{role} is {column}; name one of 0 to "
            f"{width - 1}"
        )
    return column % width


def _with_tags(
    examples: TaggedWords, tags: Sequence[Sequence[str]], options: TaggingOptions
) -> TaggedWords:
    """Return the examples with the file's tags, as labels of words or as entities."""
    tags = [[as_label(tag) for tag in own] for own in tags]
    if options.scheme != "entities":
        return dataclasses.replace(examples, tags=tags, scheme="plain")
    for sentence, sentence_tags in enumerate(tags):
        for word, tag in enumerate(sentence_tags):
            if not ENTITY_TAG.fullmatch(tag):
                raise DataError(
                    f"{examples.location(sentence, word)}: {tag!r} is not a tag (O, B-, I-, E- or "
                    f"S-, and a type); correct the line, set the tag column with --set "
                    f"options.columns.tag=NUMBER (null: no tags), or say that tags are labels of "
                    f"words with options.scheme=plain"
                )
    tags = [[tag + UNTYPED if tag in "BIESLU" else tag for tag in own] for own in tags]
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
