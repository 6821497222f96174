"""Files of words and tags for tests, that the tiny checkpoint's vocabulary can learn."""

from __future__ import annotations

import random
from pathlib import Path

from tests.model.tasks.conftest import NEUTRAL

NAMES = {"LOC": ["bad", "awful"], "PER": ["good", "lovely"]}


def sentences(count: int, seed: int, longest: int = 40) -> list[list[tuple[str, str]]]:
    """Words with tags in BIO: names of one or two words among others."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        sentence: list[tuple[str, str]] = []
        while len(sentence) < draw.randrange(2, longest):
            if draw.random() < 0.25:
                kind = draw.choice(sorted(NAMES))
                name = NAMES[kind][: draw.choice((1, 2))]
                sentence += [(word, f"{'I' if i else 'B'}-{kind}") for i, word in enumerate(name)]
            sentence.append((draw.choice(NEUTRAL), "O"))
        found.append(sentence)
    return found


def write_columns(path: Path, found: list[list[tuple[str, str]]], separator: str = " ") -> Path:
    """A file of them, with a document's mark first."""
    lines = [f"-DOCSTART-{separator}O", ""]
    for sentence in found:
        lines += [f"{word}{separator}{tag}" for word, tag in sentence] + [""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
