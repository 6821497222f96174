"""Schemes of tags, from BIO to BMEWO.

Entities are those of conlleval (CoNLL-2000) in every scheme, even for invalid sequences: an I- or
E- without a preceding entity of its type begins one, and a change of type ends one. The rule is
seqeval's `get_entities`. Tags are converted between schemes via entities, which repairs invalid
tags as conlleval counts them. Plain labels, such as parts of speech, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast

from seqeval.metrics.sequence_labeling import get_entities

Scheme = Literal["BIO", "IOB1", "BIOES", "BILOU", "BMES", "BMEWO", "plain"]
Entity = tuple[str, int, int]  # type, first word, last word

OUTSIDE = "O"
# Prefixes within, at the end of and alone in an entity, where they are not those of BIO.
PREFIXES: Mapping[Scheme, tuple[str, str, str]] = {
    "BIOES": ("I", "E", "S"),
    "BILOU": ("I", "L", "U"),
    "BMES": ("M", "E", "S"),
    "BMEWO": ("M", "E", "W"),
}
_BIOES = {"L": "E", "U": "S", "M": "I", "W": "S"}  # prefixes of other schemes
UNTYPED = "-_"  # type of tags without one, as in BioBERT's files: B, I and O


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, in order."""
    if all(tag == OUTSIDE for tag in tags):  # most sentences, if entities are rare
        return []
    bioes = [_BIOES.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return [(str(kind), int(first), int(last)) for kind, first, last in get_entities(bioes)]


def joined_labels(labels: Sequence[str]) -> list[Entity]:
    """Return runs of words with one label, in order; B- begins a run, and O is in none.

    As transformers' `TokenClassificationPipeline.group_entities` for labels with and without B- and
    I-.
    """
    runs: list[Entity] = []
    for word, label in enumerate(labels):
        kind = label[2:] if label.startswith(("B-", "I-")) else label
        continues = bool(runs) and runs[-1][0] == kind and runs[-1][2] == word - 1
        if label != OUTSIDE and continues and not label.startswith("B-"):
            runs[-1] = (kind, runs[-1][1], word)
        elif label != OUTSIDE:
            runs.append((kind, word, word))
    return runs


def tags_from_entities(spans: Iterable[Entity], words: int, scheme: Scheme) -> list[str]:
    """Return the tags [words] of non-overlapping entities in a scheme."""
    tags = [OUTSIDE] * words
    previous: Entity | None = None
    for kind, first, last in spans:
        neighbours = previous is not None and previous[0] == kind and previous[2] + 1 == first
        inside, end, single = PREFIXES.get(scheme, ("I", "I", "I"))
        tags[first : last + 1] = [f"{inside}-{kind}"] * (last + 1 - first)
        if scheme != "IOB1" or neighbours:
            tags[first] = f"B-{kind}"
        if scheme in PREFIXES:
            tags[last] = f"{single if first == last else end}-{kind}"
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
    """Return the scheme with the fewest invalid tags; BIO on a tie."""
    prefixes = {tag[0] for tags in sentences for tag in tags}
    for signs, scheme in (("W", "BMEWO"), ("M", "BMES"), ("ES", "BIOES"), ("LU", "BILOU")):
        if prefixes & set(signs):
            return cast(Scheme, scheme)
    schemes: tuple[Scheme, ...] = ("BIO", "IOB1")
    return min(schemes, key=lambda scheme: count_invalid_tags(sentences, spans, scheme))
