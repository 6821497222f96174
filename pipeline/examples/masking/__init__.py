"""Which tokens a model must guess, and what it sees instead: one pure function for stored and for fresh masks.

`draw.py` holds `draw_masks`, the budget and the replacement; a rule says which tokens are chosen. It is one file here
and one line in the table: a function `(Candidates, budget, U64 keys) -> Selection`.
"""

from __future__ import annotations

# Name -> `module:function`; named, not imported, so that configs can check a name without loading numpy.
RULES = {
    "token": "pipeline.examples.masking.token:choose_tokens",
}
