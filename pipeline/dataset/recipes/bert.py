"""BERT's examples."""

from __future__ import annotations

from dataclasses import replace

from pipeline.dataset.recipes.recipe import Recipe


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
