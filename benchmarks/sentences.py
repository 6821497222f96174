"""Scores sentence splitting against treebanks: ours, a naive splitter and pysbd.

    pip install --target /tmp/pysbd pysbd
    python -m benchmarks.sentences --pysbd /tmp/pysbd DIR/*-ud-test.conllu

pysbd stays out of the environment, since it brings a package of the name `benchmarks`.

Each file is a treebank in CoNLL-U, such as those of https://universaldependencies.org, named
`LANGUAGE_NAME-ud-SPLIT.conllu`. Consecutive sentences are joined to paragraphs, as the treebank
spaces them, and each splitter has to find the borders again. The naive splitter cuts after an end
mark and a blank, in Chinese and Japanese after an end mark alone.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cloze.pipeline.corpus.steps.sentences import split_paragraph

SENTENCES_A_PARAGRAPH = 8
UNSPACED = ("zh", "ja", "th")  # languages whose sentences are joined without a blank
_NAIVE = re.compile(r"""(?<=[.!?…؟۔।॥։።፧။៕།])["'”’»)\]]*\s+|(?<=[。！？])[」』”’）]*\s*""")

Splitter = Callable[[str], list[str]]


def read_treebank(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each sentence and what stands between it and the next: a blank or nothing."""
    text, last = "", ""
    language = language_of(path)
    for line in itertools.chain(path.open(encoding="utf-8"), ["\n"]):
        line = line.rstrip("\n")
        if line.startswith("# text = "):
            text = line[9:].strip()
        elif line and not line.startswith("#"):
            last = line
        elif not line and text:
            is_glued = language in UNSPACED or "SpaceAfter=No" in last
            yield text, "" if is_glued else " "
            text = ""


def language_of(path: Path) -> str:
    return path.name.split("_")[0]


def paragraphs(path: Path, limit: int) -> Iterator[tuple[str, set[int]]]:
    """Yield paragraphs and the borders in them, counted in characters that are no white space."""
    sentences = list(itertools.islice(read_treebank(path), limit))
    for start in range(0, len(sentences), SENTENCES_A_PARAGRAPH):
        group = sentences[start : start + SENTENCES_A_PARAGRAPH]
        yield (
            "".join(text + gap for text, gap in group).strip(),
            borders([text for text, _ in group]),
        )


def borders(sentences: list[str]) -> set[int]:
    """Return the positions at which sentences begin but the first."""
    ends = itertools.accumulate(len("".join(sentence.split())) for sentence in sentences)
    return set(list(ends)[:-1])


def naive(language: str) -> Splitter:
    def split(text: str) -> list[str]:
        cuts = [0, *(match.end() for match in _NAIVE.finditer(text)), len(text)]
        return [
            text[left:right] for left, right in itertools.pairwise(cuts) if text[left:right].strip()
        ]

    return split


def by_pysbd(language: str) -> Splitter:
    import pysbd
    from pysbd.languages import LANGUAGE_CODES

    segmenter = pysbd.Segmenter(
        language=language if language in LANGUAGE_CODES else "en", clean=False
    )
    return lambda text: list(segmenter.segment(text))


def ours(language: str) -> Splitter:
    return lambda text: split_paragraph(text, language)


SPLITTERS: dict[str, Callable[[str], Splitter]] = {"ours": ours, "naive": naive, "pysbd": by_pysbd}


def score(
    paths: list[Path], split: Splitter, limit: int, errors: int = 0
) -> tuple[float, float, float]:
    """Return precision, recall and F1 of the borders inside paragraphs; print the first errors."""
    right = found = expected = 0
    for text, gold in itertools.chain.from_iterable(paragraphs(path, limit) for path in paths):
        got = borders(split(text))
        right, found, expected = right + len(got & gold), found + len(got), expected + len(gold)
        for border in sorted(got ^ gold)[:errors]:
            letters = [at for at, letter in enumerate(text) if not letter.isspace()]
            at = letters[border]
            kind = "missed" if border in gold else "wrong"
            print(f"  {kind}: …{text[max(0, at - 50) : at]}‖{text[at : at + 30]}…", file=sys.stderr)
            errors -= 1
    precision, recall = right / max(found, 1), right / max(expected, 1)
    return precision, recall, 2 * precision * recall / max(precision + recall, 1e-9)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("treebanks", nargs="+", type=Path)
    parser.add_argument(
        "--sentences",
        type=int,
        default=1500,
        help="sentences read of each treebank (default: 1500)",
    )
    parser.add_argument(
        "--errors",
        type=int,
        default=0,
        help="errors of ours printed for each language (default: 0)",
    )
    parser.add_argument(
        "--pysbd", type=Path, help="folder in which pysbd is installed (default: pysbd is left out)"
    )
    args = parser.parse_args()
    if args.pysbd:
        sys.path.append(str(args.pysbd))
    names = [name for name in SPLITTERS if args.pysbd or name != "pysbd"]
    print(
        "| language | "
        + " | ".join(names)
        + " | ours is best |\n|---"
        + "|---" * (len(names) + 1)
        + "|"
    )
    seconds = dict.fromkeys(names, 0.0)
    for language, group in itertools.groupby(sorted(args.treebanks, key=language_of), language_of):
        paths = list(group)
        scores = {}
        for name in names:
            start = time.process_time()
            scores[name] = score(
                paths, SPLITTERS[name](language), args.sentences, args.errors * (name == "ours")
            )
            seconds[name] += time.process_time() - start
        is_best = scores["ours"][2] >= max(f1 for _, _, f1 in scores.values())
        cells = [
            f"{precision:.3f} / {recall:.3f} / **{f1:.3f}**"
            for precision, recall, f1 in scores.values()
        ]
        print(
            f"| {language} | " + " | ".join(cells) + f" | {'yes' if is_best else 'no'} |",
            flush=True,
        )
    print("\nCPU seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()))


if __name__ == "__main__":
    main()
