"""The papers' ways of making examples: each a documented function that gives its values.

Light, because configs read it: names of pairings and rules, and numbers, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a recipe settles; every field is one of the dataset config, where it is explained and can be set otherwise.

    The most predictions of a row are no part of it: they follow from `budget`, the rate and the length
    (`pipeline.dataset.masking.default_cap`).
    """

    pairing: str
    masking: str
    mask_rate: float = 0.15
    budget: str = "bert"
    mask_share: float = 0.8
    random_share: float = 0.1
    random_from: str = "vocabulary"
    short_seq_prob: float = 0.1
    copies: int = 10


def bert() -> Recipe:
    """BERT: next sentence prediction and token masks.

    Devlin et al. 2019, section 3.1 and appendix A.2 (80/10/10, 15 %); google-research/bert, create_pretraining_data.py
    (dupe_factor 10, random words from the whole vocabulary) and README (short_seq_prob .1, 20 predictions at 128).
    """
    return Recipe(pairing="nsp", masking="token")


def bert_wwm() -> Recipe:
    """BERT's whole-word models: `bert`, with all pieces of a word masked together.

    google-research/bert, README of May 31st, 2019, and create_pretraining_data.py --do_whole_word_mask.
    """
    return replace(bert(), masking="whole-word")


def roberta() -> Recipe:
    """RoBERTa: FULL-SENTENCES, no pair task, ten static masks (or dynamic ones), random words that are never special.

    Liu et al. 2019, sections 4.1 and 4.2; fairseq, mask_tokens_dataset.py (the number of masks is .15 · length, rounded up or down
    at random). Rows are `<s> … </s>`, with one more `</s>` between documents.
    """
    return Recipe(
        pairing="full",
        masking="token",
        budget="probabilistic",
        random_from="pieces",
        short_seq_prob=0.0,
    )


def roberta_doc() -> Recipe:
    """RoBERTa with DOC-SENTENCES: no row crosses the end of a document (Liu et al. 2019, section 4.2 and table 2)."""
    return replace(roberta(), pairing="document")


def albert() -> Recipe:
    """ALBERT: sentence order prediction, half of it swapped, and masks of 1 to 3 words with p in proportion to 1/n.

    Lan et al. 2020, section 3.1 and equation 1; google-research/albert, create_pretraining_data.py (dupe_factor 40). Its 20
    predictions a row at length 512 would mask under 4 %: here the cap grows with the length.
    """
    return Recipe(pairing="sop", masking="n-gram", copies=40)


def spanbert() -> Recipe:
    """SpanBERT: one segment, spans of 1 to 10 words (geometric, p = .2, mean 3.8), each replaced as one.

    Joshi et al. 2020, section 3; facebookresearch/SpanBERT, masking.py: ceil(.15 · length) without special tokens, and random
    pieces as frequent as they are in the text. Boundary targets follow from the positions: see
    `pipeline.dataset.masking.span`. Masks were dynamic there. short_seq_prob is its code's default, .1; the paper says
    (section 4.2) that its own models were trained without short sequences: 0 repeats them.
    """
    return Recipe(pairing="document", masking="span", budget="ceil", random_from="corpus")


def electra() -> Recipe:
    """ELECTRA: one or two segments without a pair task, masks 85/15 without random words, for the generator to fill.

    Clark et al. 2020, section 3.1 and table 6; google-research/electra, build_pretraining_dataset.py (10 % single segments, 5 %
    short rows) and pretrain_helpers.py (round(.15 · length), 85 % [MASK], 15 % as they were). Masks were dynamic there.
    """
    return Recipe(
        pairing="electra",
        masking="token",
        budget="round",
        mask_share=0.85,
        random_share=0.0,
        short_seq_prob=0.05,
    )


def lm() -> Recipe:
    """A left-to-right language model's rows: text that runs on, documents joined by [SEP], nothing masked.

    Devlin et al. 2019, table 5, "LTR". Every row has one copy with no positions in it.
    """
    return Recipe(pairing="full", masking="none", short_seq_prob=0.0, copies=1)


def packed() -> Recipe:
    """Several documents a row, each `[CLS] … [SEP]`, with boundaries for attention that stays within a document.

    For unpadded training (Portes et al. 2023, MosaicBERT, section 3.2; Warner et al. 2024, ModernBERT, section 2.1.2), which both masked
    30 % of the tokens. Best-fit packing (Ding et al. 2024), nothing dropped.
    """
    return Recipe(pairing="packed", masking="token", mask_rate=0.3, random_from="pieces", short_seq_prob=0.0)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "bert": bert,
    "bert-wwm": bert_wwm,
    "roberta": roberta,
    "roberta-doc": roberta_doc,
    "albert": albert,
    "spanbert": spanbert,
    "electra": electra,
    "lm": lm,
    "packed": packed,
}
