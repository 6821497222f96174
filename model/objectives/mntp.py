"""Masked next-token prediction: name a masked token at the position before it, from all others.

So a network says at one place what it says there when it reads from left to right, and can be trained on both (Charpentier and Samuel,
"GPT or BERT: why not both?", 2024, section 2; `clm`).
"""

from __future__ import annotations

from model.objectives.masked import masked_objective
from model.objectives.mlm import details

OBJECTIVE = masked_objective("mntp", "masked_lm", "mlm_logits", details)
