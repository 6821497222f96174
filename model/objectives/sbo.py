"""Span boundary objective: name a masked token from what stands on both sides of its span (Joshi et al., SpanBERT, 2020, 2.2)."""

from __future__ import annotations

from model.objectives.masked import masked_objective

OBJECTIVE = masked_objective("sbo", "span_boundary", "sbo_logits")
