"""Causal language modelling by a model that can also fill masks: name the next token, from those before alone.

A phase of it before one of masked language modelling makes a better encoder than masks alone in the same time (Gisserot-Boukhlef et al.,
"Should We Still Pretrain Encoders with Masked Language Modeling?", 2025). Models that only ever read from left to right have `lm`.
"""

from __future__ import annotations

from model.objectives.masked import masked_objective

OBJECTIVE = masked_objective("clm", "masked_lm", "clm_logits", labels_name="causal_labels", reads="causal")
