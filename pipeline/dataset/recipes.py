"""The recipes: each paper's training examples, as values of the dataset's config.

A recipe is a function and a row in `RECIPES`. It cites the paper and returns the fields of the
config, its pairing and its masking rule that differ from
`cloze.pipeline.dataset.config.ExampleConfig` (BERT's). Recipes do not set the maximum predictions
per row, which follow from `mask_rounding`, rate and length
(`cloze.pipeline.dataset.masking.registry.default_cap`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cloze.core.plugins import Table

Values = dict[str, Any]


def bert() -> Values:
    """BERT: next sentence prediction and token masks; the text ten times, in five drawings.

    Devlin et al. 2019, section 3.1 and appendix A.2 (80/10/10, 15 %); google-research/bert,
    create_pretraining_data.py (dupe_factor 10, random words from the whole vocabulary) and README
    (short_seq_prob .1, 20 predictions at 128).

    What differs: two of the ten duplicates share a drawing (borders of A and B, random B, short
    rows); ten drawings of one mask take 1.6 times the disk. Sentences longer than a row are cut; a
    random B is of another document of the shard; `[UNK]` is never masked. Training reads one
    drawing after another.
    """
    return {"pairing": "nsp", "masking": "token", "drawings": 5, "mask_copies": 2}


def bert_wwm() -> Values:
    """BERT's whole-word models: `bert`, with all tokens of a word masked together.

    Source: google-research/bert, README of May 31st, 2019, and create_pretraining_data.py
    --do_whole_word_mask.
    """
    return {**bert(), "masking": "whole-word"}


def roberta() -> Values:
    """RoBERTa: FULL-SENTENCES, no pair task, ten static masks, no special random tokens.

    Liu et al. 2019, sections 4.1 and 4.2; fairseq, mask_tokens_dataset.py (number of masks: .15 ·
    length, rounded up or down at random). Rows are `<s> … </s>`, with another `</s>` between
    documents. Dynamic masks are possible.
    """
    return {
        "pairing": "full",
        "masking": "token",
        "mask_rounding": "probabilistic",
        "random_from": "pieces",
        "short_seq_prob": 0.0,
    }


def roberta_doc() -> Values:
    """RoBERTa with DOC-SENTENCES: rows end with their document (Liu et al. 2019, 4.2, table 2)."""
    return {**roberta(), "pairing": "document"}


def albert() -> Values:
    """ALBERT: sentence order prediction, half of it swapped; masks of n = 1 to 3 words, p ~ 1/n.

    Lan et al. 2020, section 3.1 and equation 1; google-research/albert, create_pretraining_data.py
    (dupe_factor 40). Its 20 predictions per row at length 512 would mask under 4 %; here the
    maximum grows with the length.

    What differs, besides what `bert` says: four of the forty duplicates share a drawing. A chunk of
    one sentence has no label; that program gives it a random B with the label "swapped", which
    mixes two tasks (issue 234 there).
    """
    return {"pairing": "sop", "masking": "n-gram", "drawings": 10, "mask_copies": 4}


def spanbert() -> Values:
    """SpanBERT: one segment; spans of 1 to 10 words (geometric, p = .2, mean 3.8), replaced as one.

    Joshi et al. 2020, section 3; facebookresearch/SpanBERT, masking.py: ceil(.15 · length) without
    special tokens, and random tokens by their frequency in the text. Boundary targets follow from
    the positions: see `cloze.pipeline.dataset.masking.rules`. Its masks were dynamic, so rows are
    drawn once. There are no short rows (section 4.2); the default of its code, short_seq_prob .1,
    was not used.
    """
    return {
        "pairing": "document",
        "masking": "span",
        "mask_rounding": "ceil",
        "random_from": "corpus",
        "short_seq_prob": 0.0,
    }


def electra() -> Values:
    """ELECTRA: one or two segments without a pair task; 85 % [MASK], 15 % kept, for the generator.

    Clark et al. 2020, section 3.1 and table 6; google-research/electra,
    build_pretraining_dataset.py (10 % single segments, 5 % short rows) and pretrain_helpers.py
    (round(.15 · length), 85 % [MASK], 15 % kept). Its masks were dynamic.
    """
    return {
        "pairing": "electra",
        "masking": "token",
        "mask_rounding": "round",
        "mask_share": 0.85,
        "random_share": 0.0,
        "short_seq_prob": 0.05,
    }


def lm() -> Values:
    """Rows of a left-to-right language model: continuous text, documents joined by [SEP], no masks.

    Devlin et al. 2019, table 5, "LTR". Every row has one mask copy without positions.
    """
    return {"pairing": "full", "masking": "none", "short_seq_prob": 0.0, "mask_copies": 1}


def packed() -> Values:
    """Several documents per row, each `[CLS] … [SEP]`, with boundaries for per-document attention.

    For unpadded training (Portes et al. 2023, MosaicBERT, section 3.2; Warner et al. 2024,
    ModernBERT, section 2.1.2); both masked 30 % of the tokens. Best-fit packing (Ding et al. 2024)
    without dropped text.
    """
    return {
        "pairing": "packed",
        "masking": "token",
        "mask_rate": 0.3,
        "random_from": "pieces",
        "short_seq_prob": 0.0,
    }


_RECIPES: Mapping[str, Callable[[], Values]] = {
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
RECIPES: Table[Callable[[], Values]] = Table("recipes", "recipe", _RECIPES, ("recipe",))
