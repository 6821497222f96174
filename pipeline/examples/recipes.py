"""The papers' ways of making examples: each a documented function that gives its values.

Light, because configs read it: names of pairings and rules, and numbers, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a recipe settles; every field is one of the dataset config, where it can be set otherwise.

    Attributes:
        pairing: a name in `pipeline.examples.pairs.PAIRINGS`.
        masking: a name in `pipeline.examples.masking.RULES`.
        mask_rate: the share of tokens predicted.
        mask_share: the share of predicted tokens replaced by [MASK].
        random_share: the share replaced by a random piece.
        short_seq_prob: the share of documents cut into shorter rows.
    """

    pairing: str
    masking: str
    mask_rate: float
    mask_share: float
    random_share: float
    short_seq_prob: float


def bert() -> Recipe:
    """BERT: next sentence prediction and token masks.

    Devlin et al. 2019, section 3.1 and appendix A.2 (80/10/10, 15 %); google-research/bert, create_pretraining_data.py
    and README (short_seq_prob .1).
    """
    return Recipe(
        pairing="nsp",
        masking="token",
        mask_rate=0.15,
        mask_share=0.8,
        random_share=0.1,
        short_seq_prob=0.1,
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "bert": bert,
}
