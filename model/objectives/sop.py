"""Sentence order prediction: are the two segments in order (0) or swapped (1)? (Lan et al., ALBERT, 2020, section 3.1)."""

from __future__ import annotations

from model.objectives.pairs import pair_objective

OBJECTIVE = pair_objective("sop", recipe="albert")
