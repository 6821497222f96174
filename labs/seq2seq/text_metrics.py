"""Metrics of written texts, from 0 to 1: BLEU and chrF (sacrebleu), ROUGE (rouge-score).

Exact match is counted by tokens, in `cloze.labs.seq2seq.text_to_text_task`. The packages are
optional (extra `texts`), and imported only by the functions that call them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cloze.core.errors import UsageError, did_you_mean
from cloze.core.words import UNSPACED_LETTER, caseless, word_pattern

Texts = Sequence[str]


def bleu(texts: Texts, targets: Texts) -> float:
    """Return the corpus BLEU of sacrebleu (Post, 2018), tokenized as by mteval-v13a.

    That splits at spaces: for Chinese, Japanese and Thai use chrF.
    """
    import sacrebleu

    return min(1.0, float(sacrebleu.corpus_bleu(list(texts), [list(targets)]).score) / 100.0)


def chrf(texts: Texts, targets: Texts) -> float:
    """Return the corpus chrF of sacrebleu (Popović, 2015): 6 characters, no words, beta 2."""
    import sacrebleu

    return float(sacrebleu.corpus_chrf(list(texts), [list(targets)]).score) / 100.0


def rouge(name: str, texts: Texts, targets: Texts) -> float:
    """Return the mean F1 of ROUGE-1, -2 or -L (Lin, 2004), with Porter's stemmer, as T5.

    rouge-score drops all letters but a to z. A target with others is compared by `_AnyScript`.
    """
    from rouge_score.rouge_scorer import RougeScorer

    english = RougeScorer([name], use_stemmer=True)
    others = RougeScorer([name], tokenizer=_AnyScript)
    total = 0.0
    for text, target in zip(texts, targets, strict=True):
        has_others = any(letter.isalpha() and not letter.isascii() for letter in target)
        scorer = others if has_others else english
        total += scorer.score(target, text)[name].fmeasure
    return total / max(1, len(targets))


class _AnyScript:
    """Tokenizer of rouge-score: words; in scripts without spaces between words, letters."""

    @staticmethod
    def tokenize(text: str) -> list[str]:
        words: list[str] = word_pattern().findall(UNSPACED_LETTER.sub(r" \g<0> ", caseless(text)))
        return words


Metric = tuple[str, Callable[[Texts, Texts], float]]  # package and function
TEXT_METRICS: dict[str, Metric] = {
    "bleu": ("sacrebleu", bleu),
    "chrf": ("sacrebleu", chrf),
    **{name: ("rouge_score", partial(rouge, name)) for name in ("rouge1", "rouge2", "rougeL")},
}
EXACT_MATCH = "exact_match"


def packages(names: Sequence[str]) -> set[str]:
    """Return the packages that metrics need.

    Raises:
        UsageError: a metric is unknown.
    """
    known = (EXACT_MATCH, *TEXT_METRICS)
    for name in names:
        if name not in known:
            fix = did_you_mean(name, known)
            raise UsageError(f"options.metrics ({name!r}) is unknown; {fix}")
    return {TEXT_METRICS[name][0] for name in names if name in TEXT_METRICS}
