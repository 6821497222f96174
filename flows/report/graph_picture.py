"""Picture of a run's graph as inline SVG: a column for each length of the path to a node.

A column's nodes are sorted by the mean height of their inputs, which leaves few crossings. An edge
over several columns passes behind their boxes; inputs that other inputs imply are not drawn. For
phones the same graph is a list, with a node below its inputs and indented by its column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from rich.cells import cell_len

from cloze.core.humanize import shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Positions of nodes, in pixels."""

    layers: Mapping[str, int]  # column by node
    heights: Mapping[str, float]  # y coordinate of a node's middle
    edges: Sequence[tuple[str, str]]  # the drawn inputs, (from, to)
    height: float  # height of the picture


def layout(after: Mapping[str, Sequence[str]], *, box: float, gap: float) -> Layout:
    """Place the nodes.

    `after`: predecessors by node, in topological order; predecessors that come later are ignored.
    """
    parents: dict[str, list[str]] = {}
    ancestors: dict[str, set[str]] = {}
    columns: dict[int, list[str]] = {}
    layers: dict[str, int] = {}
    for name, inputs in after.items():
        known = [parent for parent in dict.fromkeys(inputs) if parent in layers]
        indirect = set().union(*(ancestors[parent] for parent in known))
        parents[name] = [parent for parent in known if parent not in indirect]
        ancestors[name] = indirect.union(known)
        layers[name] = 1 + max((layers[parent] for parent in known), default=-1)
        columns.setdefault(layers[name], []).append(name)
    heights: dict[str, float] = {}
    middle = max(map(len, columns.values()), default=0) * (box + gap) / 2
    for column in columns.values():  # each after those of its inputs
        column.sort(key=lambda name: fmean([heights[each] for each in parents[name]] or [0.0]))
        top = middle - len(column) * (box + gap) / 2
        heights |= {name: top + n * (box + gap) + box / 2 for n, name in enumerate(column)}
    return Layout(
        layers=layers,
        heights=heights,
        edges=[(parent, name) for name, inputs in parents.items() for parent in inputs],
        height=max(0.0, 2 * middle - gap),
    )


BOX_HEIGHT, GAP, BETWEEN, MARGIN, INDENT = 44.0, 14.0, 46.0, 3.0, 10.0
NAME_WIDTH, LINE_WIDTH = 9.0, 6.6  # pixels a column of the widest font, at the two font sizes
MARK, PADDING = 20.0, 10.0
MOST_NODES = 60  # in a larger graph, the nodes of one stage in one layer are one box

FILL, BORDER, MARK_SIGN = "var(--done, #e6f4ea)", "var(--green, #2f855a)", "✓"  # finished node
INK, MUTED = "var(--ink, #1f2933)", "var(--muted, #616e7c)"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePicture:
    """A finished node of the picture."""

    stage: str
    after: tuple[str, ...] = ()  # names of the nodes that it takes inputs from
    line: str = ""  # text below the name, such as the main metric


def graph_svg(nodes: Mapping[str, NodePicture], *, as_list: bool = False) -> str:
    """Return an `<svg class="graph">` in its natural size in pixels. Names and lines are escaped.

    Args:
        nodes: nodes by name, in topological order; inputs that are not in `nodes` are ignored.
        as_list: one node a row, for narrow screens; its class is "graph list".
    """
    nodes = _gathered(nodes) if len(nodes) > MOST_NODES else nodes
    after = {name: node.after for name, node in nodes.items()}
    placed = layout(after, box=BOX_HEIGHT, gap=GAP)
    widths: Counter[int] = Counter()
    for name, node in nodes.items():
        layer, line = placed.layers[name], LINE_WIDTH * cell_len(shortened(node.line))
        text = max(NAME_WIDTH * cell_len(shortened(name)), line)
        widths[layer] = max(widths[layer], round(MARK + 2 * PADDING + text))
    lefts, right = [], MARGIN
    for layer in range(len(widths)):
        lefts.append(MARGIN + layer * INDENT if as_list else right)
        right += widths[layer] + BETWEEN
    heights, height, edge = placed.heights, placed.height, _curve
    if as_list:
        right = max((lefts[layer] + widths[layer] for layer in widths), default=0.0) + BETWEEN
        row, edge = BOX_HEIGHT + GAP, _corner
        heights = {name: n * row + BOX_HEIGHT / 2 for n, name in enumerate(nodes)}
        height = max(0.0, len(nodes) * row - GAP)
    width, height = max(0.0, right - BETWEEN) + MARGIN, height + 2 * MARGIN
    boxes = {
        name: (lefts[layer], MARGIN + heights[name], widths[layer])
        for name, layer in placed.layers.items()
    }
    elements = [
        f'<path d="{edge(boxes[source], boxes[target])}" fill="none" stroke="#9aa5b1" '
        f'stroke-width="1.4"/>'
        for source, target in placed.edges
    ]
    elements += [_box(name, node, *boxes[name]) for name, node in nodes.items()]
    return (
        f'<svg class="graph{" list" if as_list else ""}" xmlns="http://www.w3.org/2000/svg" '
        f'role="img" aria-label="{len(nodes)} nodes" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="Inter, Segoe UI, Helvetica, Arial, DejaVu Sans, '
        f'sans-serif">{"".join(elements)}</svg>'
    )


def _gathered(nodes: Mapping[str, NodePicture]) -> dict[str, NodePicture]:
    """Group a large graph: the nodes of one stage in one layer become one box."""
    depth: dict[str, int] = {}
    groups: dict[tuple[str, int], list[str]] = {}
    for name, node in nodes.items():
        depth[name] = 1 + max((depth[other] for other in node.after if other in depth), default=-1)
        groups.setdefault((node.stage, depth[name]), []).append(name)
    titles = {
        key: names[0] if len(names) == 1 else f"{key[0]} × {len(names)}"
        for key, names in groups.items()
    }
    counts = Counter(titles.values())
    titles = {
        key: text if counts[text] == 1 else f"{text} ({key[1]})" for key, text in titles.items()
    }
    title_of = {name: titles[key] for key, names in groups.items() for name in names}
    grouped = {}
    for (stage, layer), names in groups.items():
        title = titles[stage, layer]
        after = {
            title_of[other] for name in names for other in nodes[name].after if other in title_of
        }
        grouped[title] = NodePicture(
            stage=stage,
            after=tuple(parent for parent in titles.values() if parent in after - {title}),
            line=nodes[names[0]].line if len(names) == 1 else f"{len(names)} finished",
        )
    return grouped


def _box(name: str, node: NodePicture, left: float, middle: float, width: float) -> str:
    top, text_x = middle - BOX_HEIGHT / 2, left + PADDING + MARK
    name_y = top + (18 if node.line else BOX_HEIGHT / 2 + 4.5)
    line = (
        f'<text class="line" x="{text_x:.1f}" y="{top + 34:.1f}" font-size="11" '
        f'fill="{MUTED}">{escape(shortened(node.line))}</text>'
    )
    return (
        f"<g><title>{escape(f'{name} – {node.line}' if node.line else name)}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX_HEIGHT:.1f}" rx="7" '
        f'fill="{FILL}" stroke="{BORDER}" stroke-width="1.5"/>'
        f'<text class="mark" x="{left + PADDING:.1f}" y="{top + BOX_HEIGHT / 2 + 5:.1f}" '
        f'font-size="14" fill="{BORDER}">{MARK_SIGN}</text>'
        f'<text x="{text_x:.1f}" y="{name_y:.1f}" font-size="13" font-weight="600" '
        f'fill="{INK}">{escape(shortened(name))}</text>{line if node.line else ""}</g>'
    )


def _curve(source: tuple[float, float, float], target: tuple[float, float, float]) -> str:
    x, y, to_x, to_y = source[0] + source[2], source[1], target[0], target[1]
    bend = (x + to_x) / 2
    return f"M{x:.1f} {y:.1f}C{bend:.1f} {y:.1f} {bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def _corner(source: tuple[float, float, float], target: tuple[float, float, float]) -> str:
    return f"M{source[0] + INDENT / 2:.1f} {source[1]:.1f}V{target[1]:.1f}H{target[0]:.1f}"
