"""How tags say where an entity begins and ends: three schemes, read by one rule.

An entity is what the program conlleval of CoNLL-2000 takes for one, whatever the scheme and however broken the sequence: an I- or E-
that no entity of its type precedes begins one, and a change of type ends one. The rule is seqeval's `get_entities`. So a
sequence is turned into another scheme through its entities, and whatever is illegal in it is mended on the way as conlleval would
have counted it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from seqeval.metrics.sequence_labeling import get_entities

Scheme = Literal["BIO", "IOB1", "BIOES"]
Entity = tuple[str, int, int]  # type, first word, last word

OUTSIDE = "O"
TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in their order."""
    if all(tag == OUTSIDE for tag in tags):  # most sentences, where entities are rare
        return []
    return [(str(kind), int(first), int(last)) for kind, first, last in get_entities(list(tags))]


def tagged(found: Iterable[Entity], words: int, scheme: Scheme) -> list[str]:
    """The tags [words] that say these entities, which do not overlap, in a scheme."""
    tags = [OUTSIDE] * words
    before: Entity | None = None
    for kind, first, last in found:
        neighbours = before is not None and before[0] == kind and before[2] + 1 == first
        tags[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
        if scheme != "IOB1" or neighbours:
            tags[first] = f"B-{kind}"
        if scheme == "BIOES":
            tags[last] = f"S-{kind}" if first == last else f"E-{kind}"
        before = kind, first, last
    return tags


def misplaced(sentences: Sequence[Sequence[str]], found: Sequence[Sequence[Entity]], scheme: Scheme) -> int:
    """How many tags stand where the scheme does not allow them: those that change where a sentence is written in it anew.

    Args:
        found: the entities of each sentence.
    """
    again = (tagged(own, len(tags), scheme) for tags, own in zip(sentences, found, strict=True))
    return sum(a != b for tags, new in zip(sentences, again, strict=True) for a, b in zip(tags, new, strict=True))


def recognised(sentences: Sequence[Sequence[str]], found: Sequence[Sequence[Entity]]) -> Scheme:
    """The scheme that the sentences are in: the one that fewest of their tags offend; BIO where nothing tells.

    Args:
        found: the entities of each sentence.
    """
    if any(tag[0] in "ES" for tags in sentences for tag in tags):
        return "BIOES"
    return "IOB1" if misplaced(sentences, found, "IOB1") < misplaced(sentences, found, "BIO") else "BIO"
