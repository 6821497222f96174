"""Sections of the report that rows of a table add: options, tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cloze.core.options import Options
from cloze.core.plugins import Table
from cloze.flows.report.report_nodes import ReportNode, SummaryTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """A section."""

    options: type[Options] | None = None  # its fields of the report's config
    # returns its tables and a figure (`<svg>` or nothing), from the config and the nodes
    tables: Callable[[Any, Sequence[ReportNode]], tuple[list[SummaryTable], str]] | None = None
    # returns its pictures, from the nodes
    pictures: Callable[[Sequence[ReportNode]], Sequence[Any]] | None = None


SECTIONS: Table[ReportSection] = Table("report_sections", "section of the report", {})
