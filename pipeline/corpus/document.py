"""The one thing that passes through the corpus stage: a document, its text already cut into paragraphs.

Readers make it (pipeline/corpus/readers), the functions beside this file map it to a new one or give a reason to drop it.
"""

from __future__ import annotations

from dataclasses import dataclass

# Stands where a reader took out something that words cannot replace, such as a formula. A sentence with a hole
# in it is no sentence any more and is dropped when the text is split. U+E0FF is a private-use character.
HOLE = "\ue0ff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text with a name.

    Attributes:
        id: `source/file/own name`, unique in a corpus; its hash is the seed of everything random about the document.
        source: the reader's name, such as `wikipedia`.
        title: for people; may be empty.
        paragraphs: the text in reading order. Line breaks inside a paragraph mean nothing.
        language: ISO 639 code, where the source or the identification of languages says it; else empty.
    """

    id: str
    source: str
    title: str
    paragraphs: tuple[str, ...]
    language: str = ""

    @property
    def text(self) -> str:
        """The paragraphs, one a line."""
        return "\n".join(self.paragraphs)
