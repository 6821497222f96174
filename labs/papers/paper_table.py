"""A paper's table in a run's report: the run's scores with the published figures beside them.

A preset of `labs/papers/presets/` has the table in its section `report`: rows and columns select
the run's nodes by their matrix values, and name the figures that the paper has there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloze.core.figures import is_finite, lower_is_better
from cloze.core.humanize import format_count
from cloze.flows.report.report_nodes import ReportNode, SummaryTable
from cloze.labs.papers.table_config import PaperTable, TableColumn, TableRow

EVALUATE, FINETUNE, PRETRAIN = "evaluate", "finetune", "pretrain"
NEAR = 1.1  # a run's size within this factor of the paper's counts as equal
MISSING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Scores of a row in a column by seed, in the paper's unit, and the published figure."""

    by_seed: Mapping[str, float]
    published: float | None
    digits: int = 1
    nodes: Sequence[str] = ()  # names of the nodes with these scores

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.by_seed.values()) if self.by_seed else None

    def text(self, seeds: int, sign: str = "") -> str:
        """Return mean and deviation, n if it is not `seeds`, and the published figure in brackets.

        Args:
            seeds: the table's usual number of seeds.
            sign: "+" for a difference.
        """
        form = f"{sign}.{self.digits}f"
        published = "" if self.published is None else f"[{self.published:{form}}]"
        if self.mean is None:
            return published or MISSING
        values = list(self.by_seed.values())
        spread = f" ± {statistics.stdev(values):.{self.digits}f}" if len(values) > 1 else ""
        number = f" (n {len(values)})" if len(values) not in (1, seeds) else ""
        return f"{self.mean:{form}}{spread}{number} {published}".rstrip()


Cells = Mapping[str, Mapping[str, Cell]]  # by row and column


def table_cells(table: PaperTable, nodes: Sequence[ReportNode]) -> Cells:
    """Return the cells of a table, from the nodes that its rows and columns select."""
    cells: dict[str, dict[str, Cell]] = {row: {} for row in table.rows}
    members = {row: _members(table, row, nodes) for row in table.rows}
    # means last: a column that they need may follow them
    for name, column in sorted(table.columns.items(), key=lambda item: bool(item[1].mean_of)):
        for row, spec in table.rows.items():
            scored = [] if column.mean_of else _scored(members[row], name, column, spec)
            by_seed = {_seed(node): value for node, value in scored}
            if column.mean_of:
                by_seed = _mean_by_seed([cells[row][part].by_seed for part in column.mean_of])
            cells[row][name] = Cell(
                by_seed=by_seed,
                published=spec.published.get(name),
                digits=column.digits,
                nodes=[node.name for node, _ in scored],
            )
    return cells


def _scored(
    members: Sequence[ReportNode], name: str, column: TableColumn, row: TableRow
) -> list[tuple[ReportNode, float]]:
    """Return the row's nodes that the column selects, with their scores."""
    selector = column.nodes or {"task": name}
    default = {"stage": EVALUATE if "split" in {**row.nodes, **selector} else FINETUNE}
    if "section" in selector or "stage" in row.nodes:
        default = {}
    selected = [node for node in members if _selects({**default, **selector}, _properties(node))]
    return [(node, value) for node in selected for value in _score(node, column)]


def paper_tables(
    table: PaperTable, cells: Cells, nodes: Sequence[ReportNode]
) -> list[SummaryTable]:
    """Return the table, differences from and shares of its reference row, and the rows' costs."""
    labels = {name: column.label or name for name, column in table.columns.items()}
    seeds = max((len(cell.by_seed) for row in cells.values() for cell in row.values()), default=0)
    texts = {row: {name: cell.text(seeds) for name, cell in cells[row].items()} for row in cells}
    used = [name for name in labels if any(texts[row][name] != MISSING for row in cells)]
    rows = [[table.rows[row].label or row, *(texts[row][name] for name in used)] for row in cells]
    spread = f"Mean ± the sample's standard deviation over {seeds} seeds"
    is_paper = any(row.published for row in table.rows.values())
    in_brackets = f"In brackets: {table.source}. " if is_paper else ""
    unit = ", in the paper's unit" if is_paper else ""
    notes = [
        f"{in_brackets}{spread if seeds > 1 else 'Scores of one seed'}{unit}.",
        *comparability(table, nodes),
        *_repeated_seeds(cells),
        *table.differs,
    ]
    columns = ["", *(labels[name] for name in used)]
    tables = [SummaryTable(title=table.source, columns=columns, rows=rows, notes=notes)]
    reference = table.reference and (table.rows[table.reference].label or table.reference)
    if differences := _differences(table, cells, used, seeds):
        title = f"Difference from {reference}"
        notes = ["Mean and deviation of the differences between runs with the same seed."]
        tables.append(SummaryTable(title=title, columns=columns, rows=differences, notes=notes))
    if shares := _shares(table, cells, used, nodes):
        columns = ["", "parameters", *columns[1:]]
        tables.append(SummaryTable(title=f"Share of {reference}", columns=columns, rows=shares))
    if costs := _costs(table, nodes):
        tables.append(costs)
    return tables


def _repeated_seeds(cells: Cells) -> list[str]:
    """Return a sentence about the cells in which several nodes have the same seed."""
    pairs = [(row, name, cell) for row in cells for name, cell in cells[row].items()]
    repeated = [entry for entry in pairs if len(entry[2].nodes) > len(entry[2].by_seed)]
    if not repeated:
        return []
    row, name, cell = repeated[0]
    more = f" {len(repeated) - 1} more cells have such nodes." if len(repeated) > 1 else ""
    return [
        f"Row {row}, column {name}: of {', '.join(cell.nodes)} only the last of each seed counts; "
        f"select one with `nodes`.{more}"
    ]


def _members(table: PaperTable, row: str, nodes: Sequence[ReportNode]) -> list[ReportNode]:
    selector = table.rows[row].nodes or {"row": row}
    return [node for node in nodes if _selects(selector, _properties(node))]


def _properties(node: ReportNode) -> dict[str, Any]:
    """Return what rows and columns select a node by."""
    summary, values = node.manifest.summary, node.placement.values
    label = node.placement.section.partition("@")[2]
    return {
        "section": node.placement.section,
        "stage": node.stage,
        "split": summary.get("split") or "dev",
        "task": node.task,
        "row": label,
        **values,
    }


def _selects(selector: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
    return all(
        str(properties.get(key)) in map(str, value if isinstance(value, list) else [value])
        for key, value in selector.items()
    )


def _score(node: ReportNode, column: TableColumn) -> Iterator[float]:
    """Yield the node's score in the paper's unit: shares in hundredths, other numbers as they are.

    A pretraining also has the numbers of its summary.
    """
    scores, summary = node.scores, node.manifest.summary
    metric = column.metric or next(iter(scores), "")
    value = scores.get(metric, summary.get(metric) if node.stage == PRETRAIN else None)
    is_share = (metric in scores or metric.endswith("accuracy")) and not lower_is_better(metric)
    if is_finite(value):
        yield value * (100 if is_share else 1)


def _seed(node: ReportNode) -> str:
    return str(node.placement.values.get("seed", ""))


def _mean_by_seed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    common = [seed for seed in parts[0] if all(seed in part for part in parts)] if parts else []
    return {seed: statistics.fmean(part[seed] for part in parts) for seed in common}


def _differences(
    table: PaperTable, cells: Cells, used: Sequence[str], seeds: int
) -> list[list[str]]:
    """Return a row of differences from the reference row for each other row that the run has."""
    if not table.reference:
        return []
    reference, rows = cells[table.reference], []
    for row, own in cells.items():
        texts = [_difference(own[name], reference[name]).text(seeds, "+") for name in used]
        if row != table.reference and any(own[name].by_seed for name in used):
            rows.append([table.rows[row].label or row, *texts])
    return rows


def _difference(cell: Cell, reference: Cell) -> Cell:
    published = None
    if cell.published is not None and reference.published is not None:
        published = cell.published - reference.published
    alone = reference.by_seed.get("")  # one run without a seed: each run is compared with it
    references = reference.by_seed if alone is None else dict.fromkeys(cell.by_seed, alone)
    common = cell.by_seed.keys() & references.keys()
    by_seed = {seed: cell.by_seed[seed] - references[seed] for seed in sorted(common)}
    return Cell(by_seed=by_seed, published=published, digits=cell.digits)


def _shares(
    table: PaperTable, cells: Cells, used: Sequence[str], nodes: Sequence[ReportNode]
) -> list[list[str]]:
    """Return size and mean scores as shares of the reference row's; empty if no size differs."""
    phases = {row: pretrainings(_members(table, row, nodes), nodes) for row in cells}
    sizes = {row: of[-1].manifest.summary["parameters"] for row, of in phases.items() if of}
    if table.reference not in sizes or len(set(sizes.values())) == 1:
        return []
    amounts = {row: [sizes[row], *(cells[row][name].mean for name in used)] for row in sizes}
    reference, rows = amounts.pop(table.reference), []
    for row, numbers in amounts.items():
        pairs = zip(numbers, reference, strict=True)
        shares = [f"{number / of:.1%}" if number and of else MISSING for number, of in pairs]
        rows.append([table.rows[row].label or row, *shares])
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPoints:
    """Scores of a table's row: one for each seed; `x`: position, None if rows are categories."""

    label: str
    x: float | None
    values: Sequence[float]


def figure_points(table: PaperTable, cells: Cells, nodes: Sequence[ReportNode]) -> list[RowPoints]:
    """Return the dots of the table's figure; empty: no figure, or no row has its numbers."""
    if table.figure is None:
        return []
    points = []
    for row, spec in table.rows.items():
        cell = cells[row][table.figure.y]
        x = _over_phases(pretrainings(_members(table, row, nodes), nodes), table.figure.x)
        if cell.by_seed and (x is not None or table.figure.x == "row"):
            values = tuple(cell.by_seed.values())
            points.append(RowPoints(label=spec.label or row, x=x, values=values))
    return points


# What the rows cost, and how far from the paper's they are.


def pretrainings(members: Sequence[ReportNode], nodes: Sequence[ReportNode]) -> list[ReportNode]:
    """Return the pretrainings of a row's weights, all phases, earliest first; no teacher's.

    Of several seeds, only those of the first: costs and sizes are those of one model.
    """
    by_name = {node.name: node for node in nodes}
    needed, pending = set[str](), [node.name for node in members]
    while pending:
        name = pending.pop()
        if name in by_name and name not in needed:
            needed.add(name)
            pending += by_name[name].own_origins
    phases = [node for node in nodes if node.name in needed and node.stage == PRETRAIN]
    first_seed = next(filter(None, map(_seed, phases)), "")
    return [node for node in phases if _seed(node) in ("", first_seed)]


def _over_phases(phases: Sequence[ReportNode], key: str) -> float | None:
    """Return a number of the summaries, summed over phases; None: a phase does not have it."""
    numbers: list[Any] = [node.manifest.summary.get(key) for node in phases]
    return None if not numbers or None in numbers else sum(map(float, numbers))


def comparability(table: PaperTable, nodes: Sequence[ReportNode]) -> list[str]:
    """Return a sentence about the sizes in which the run's pretrainings differ from the paper's."""
    differing: dict[str, str] = {}
    for row, spec in table.rows.items():
        phases = pretrainings(_members(table, row, nodes), nodes)
        if not phases:
            continue
        own = {
            "parameters": float(phases[-1].manifest.summary["parameters"]),
            # a summary's tokens also count those of the phases before it
            "tokens": float(sum(node.manifest.tokens for node in phases)),
        }
        for name, theirs in {**table.seen, **spec.seen}.items():
            if not 1 / NEAR < own[name] / theirs < NEAR:
                text = f"{format_count(own[name])} {name} ({format_count(theirs)})"
                differing.setdefault(name, f"{text} in {spec.label or row}")
    if not differing:
        return []
    return [
        f"Not comparable in size with the paper's figures, which are in parentheses: "
        f"{'; '.join(differing.values())}. What can be compared are the signs of differences."
    ]


# heading and key in summaries; of pretrainings, summed over phases
COSTS = (
    ("words seen", "words_seen"),
    ("training FLOPs", "training_flops"),
    ("GPU-hours", "gpu_hours"),
    ("CPU-hours", "cpu_hours"),
)
INFERENCE = (
    ("ms an example", "latency_ms"),
    ("examples per second", "examples_per_second"),
    ("memory in use", "memory_bytes"),
)


def _costs(table: PaperTable, nodes: Sequence[ReportNode]) -> SummaryTable | None:
    """Return what each row of the run cost in pretraining, and costs in use."""
    rows: list[list[str]] = []
    for row, spec in table.rows.items():
        members = _members(table, row, nodes)
        phases = pretrainings(members, nodes)
        if not members or not phases:
            continue
        inferences = [node.manifest.summary.get("inference") or {} for node in members]
        amounts = [
            phases[-1].manifest.summary.get("parameters"),
            *(_over_phases(phases, key) for _, key in COSTS),
            *(next((of[key] for of in inferences if of.get(key)), None) for _, key in INFERENCE),
        ]
        rows.append([spec.label or row, *map(_amount, amounts)])
    headings = ["parameters", *(heading for heading, _ in (*COSTS, *INFERENCE))]
    shown = [i for i in range(len(headings)) if any(row[i + 1] != MISSING for row in rows)]
    if not shown:
        return None
    return SummaryTable(
        title="Cost of each row",
        columns=["", *(headings[i] for i in shown)],
        rows=[[row[0], *(row[i + 1] for i in shown)] for row in rows],
        notes=["Of one pretraining, all phases; use is measured on the machine of the evaluation."],
    )


def _amount(number: float | None) -> str:
    if number is None:
        return MISSING
    return format_count(number) if number >= 1000 else f"{number:.3g}"
