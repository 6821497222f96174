"""The report's pictures, and the headings of the options of the lab's stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloze.flows.commands.base.options import SINGLE_DEVICE_FIELDS
from cloze.flows.report.report_nodes import ReportNode
from cloze.flows.report.section import ReportSection


def _pictures(nodes: Sequence[ReportNode]) -> Sequence[Any]:
    from cloze.labs.inside.head_plots import head_pictures  # they import matplotlib
    from cloze.labs.inside.layer_plots import pictures

    return [*pictures(nodes), *head_pictures(nodes)]


SECTION = ReportSection(pictures=_pictures)
PRUNE = {
    "What to keep": "*keep_heads *heads_by *keep_layers *layers_from *sparsity",
    "Choice of heads": "*data examples epochs seed",
    **SINGLE_DEVICE_FIELDS,
}
HEADS = {
    "Texts": "*texts *treebank *rows *max_length",
    **SINGLE_DEVICE_FIELDS,
}
PROBE = {
    "Task and data": "*task *data *target *limit",
    "Probes": "*hidden *baselines *seed",
    **SINGLE_DEVICE_FIELDS,
}
LAYERS = {"Text": "*texts *tokens", **SINGLE_DEVICE_FIELDS}
