"""Picture of a run's graph as inline SVG, with a layered layout: few crossings, straight edges.

A node's layer is the length of the longest path to it. An edge over several layers gets a position
in each of them, so that it runs between the boxes. Orders are found by the barycentre heuristic.
Heights minimize the squared distance to the neighbours under the order and the gaps, which pooling
adjacent violators solves exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import fmean

from rich.cells import cell_len

from cloze.core.humanize import shortened

_Size = Callable[[str], float]
SWEEPS = 6
MANY_INPUTS = 4  # a node with more, such as a report, shows those that no other input implies


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Positions of nodes and edges, in pixels.

    Attributes:
        layers: layer by node.
        heights: y coordinate of a node's middle.
        ways: y coordinates at which an edge crosses the layers between its nodes.
        height: height of the picture.
    """

    layers: Mapping[str, int]
    heights: Mapping[str, float]
    ways: Mapping[tuple[str, str], tuple[float, ...]]  # (from, to) -> one height per layer between
    height: float


def layout(after: Mapping[str, Sequence[str]], *, box: float, gap: float, thread: float) -> Layout:
    """Place the nodes.

    Args:
        after: predecessors by node, in topological order; predecessors that come later are ignored.
        box: height of a node.
        gap: distance between two nodes.
        thread: height that a passing edge takes.
    """
    parents: dict[str, list[str]] = {}
    ancestors: dict[str, set[str]] = {}
    for name, inputs in after.items():
        known = [parent for parent in dict.fromkeys(inputs) if parent in ancestors]
        indirect = set().union(*(ancestors[parent] for parent in known))
        few = len(known) <= MANY_INPUTS
        parents[name] = [parent for parent in known if few or parent not in indirect]
        ancestors[name] = indirect.union(known)
    layers: dict[str, int] = {}
    for name, inputs in parents.items():
        layers[name] = 1 + max((layers[parent] for parent in inputs), default=-1)
    rows: list[list[str]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for name, layer in layers.items():
        rows[layer].append(name)
    # neighbours in the previous layer, with passing edges
    up: dict[str, list[str]] = {name: [] for name in layers}
    ways: dict[tuple[str, str], list[str]] = {}
    for name, inputs in parents.items():
        for parent in inputs:
            # one position per source and layer, shared by all its long edges
            way = [f"\0{parent}\0{layer}" for layer in range(layers[parent] + 1, layers[name])]
            for layer, (previous, passing) in enumerate(pairwise([parent, *way]), layers[parent]):
                if passing not in up:
                    up[passing] = [previous]
                    rows[layer + 1].append(passing)
            up[name].append([parent, *way][-1])
            ways[parent, name] = way
    down: dict[str, list[str]] = {name: [] for name in up}
    for name, neighbours in up.items():
        for parent in neighbours:
            down[parent].append(name)
    heights = _heights(rows, up, down, lambda name: thread if name.startswith("\0") else box, gap)
    top = min((heights[name] for row in rows for name in row), default=0.0) - box / 2
    heights = {name: height - top for name, height in heights.items()}
    return Layout(
        layers=layers,
        heights={name: heights[name] for name in layers},
        ways={edge: tuple(heights[name] for name in way) for edge, way in ways.items()},
        height=max(heights.values(), default=0.0) + box / 2,
    )


def _heights(
    rows: list[list[str]],
    up: Mapping[str, list[str]],
    down: Mapping[str, list[str]],
    size: _Size,
    gap: float,
) -> dict[str, float]:
    heights: dict[str, float] = {}
    for row in rows:
        heights |= _fitted(row, dict.fromkeys(row, 0.0), size, gap)
    for sweep in range(2 * SWEEPS):
        neighbours = up if sweep % 2 == 0 else down
        for row in rows if sweep % 2 == 0 else reversed(rows):
            targets = {
                name: fmean(heights[other] for other in neighbours[name] or (name,)) for name in row
            }
            if sweep < SWEEPS:  # the order is fixed after half of the sweeps
                row.sort(key=lambda name: targets[name])
            heights |= _fitted(row, targets, size, gap)
    return heights


def _offsets(row: Sequence[str], size: _Size, gap: float) -> list[float]:
    """Return the minimum distance of each node from the first."""
    offsets = [0.0] * len(row)
    for index in range(1, len(row)):
        offsets[index] = offsets[index - 1] + (size(row[index - 1]) + size(row[index])) / 2 + gap
    return offsets


def _fitted(
    row: Sequence[str], targets: Mapping[str, float], size: _Size, gap: float
) -> dict[str, float]:
    """Return the heights nearest to the targets that keep the order and the gaps."""
    offsets = _offsets(row, size, gap)
    pools: list[tuple[float, int]] = []  # mean and count of adjacent pooled nodes
    for name, offset in zip(row, offsets, strict=True):
        mean, count = targets[name] - offset, 1
        while pools and pools[-1][0] > mean:
            other, size_of_other = pools.pop()
            mean = (mean * count + other * size_of_other) / (count + size_of_other)
            count += size_of_other
        pools.append((mean, count))
    bases = [mean for mean, count in pools for _ in range(count)]
    return {name: base + offset for name, base, offset in zip(row, bases, offsets, strict=True)}


BOX_HEIGHT, GAP, THREAD, BETWEEN, MARGIN = 44.0, 14.0, 4.0, 46.0, 3.0
NAME_WIDTH, LINE_WIDTH = 9.0, 6.6  # pixels a column of the widest font, at the two font sizes
MARK, PADDING = 20.0, 10.0
MOST_NODES = 60  # in a larger graph, the nodes of one stage in one layer are one box

FILL, BORDER, MARK_SIGN = "var(--done, #e6f4ea)", "var(--green, #2f855a)", "✓"  # finished node
INK, MUTED = "var(--ink, #1f2933)", "var(--muted, #616e7c)"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePicture:
    """A finished node of the picture.

    Attributes:
        stage: stage of the node.
        after: names of the nodes that it takes inputs from.
        line: text below the name, such as the main metric.
    """

    stage: str
    after: tuple[str, ...] = ()
    line: str = ""


def graph_svg(nodes: Mapping[str, NodePicture]) -> str:
    """Return an `<svg class="graph">` in its natural size in pixels. Names and lines are escaped.

    Args:
        nodes: nodes by name, in topological order; inputs that are not in `nodes` are ignored.
    """
    nodes = _gathered(nodes) if len(nodes) > MOST_NODES else nodes
    after = {name: node.after for name, node in nodes.items()}
    placed = layout(after, box=BOX_HEIGHT, gap=GAP, thread=THREAD)
    widths: Counter[int] = Counter()
    for name, node in nodes.items():
        layer, line = placed.layers[name], LINE_WIDTH * cell_len(shortened(node.line))
        text = max(NAME_WIDTH * cell_len(shortened(name)), line)
        widths[layer] = max(widths[layer], round(MARK + 2 * PADDING + text))
    lefts, right = [], MARGIN
    for layer in range(len(widths)):
        lefts.append(right)
        right += widths[layer] + BETWEEN
    width, height = max(0.0, right - BETWEEN) + MARGIN, placed.height + 2 * MARGIN
    elements = [_edge(edge, placed, lefts, widths) for edge in placed.ways]
    for name, node in nodes.items():
        layer = placed.layers[name]
        elements.append(_box(name, node, lefts[layer], placed.heights[name], widths[layer]))
    return (
        f'<svg class="graph" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{len(nodes)} nodes" '
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
    top, text_x = MARGIN + middle - BOX_HEIGHT / 2, left + PADDING + MARK
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


def _edge(
    edge: tuple[str, str], placed: Layout, lefts: list[float], widths: Mapping[int, int]
) -> str:
    source, target = edge
    first, last = placed.layers[source], placed.layers[target]
    x, y = lefts[first] + widths[first], MARGIN + placed.heights[source]
    path = f"M{x:.1f} {y:.1f}"
    for layer, height in enumerate([*placed.ways[edge], placed.heights[target]], first + 1):
        to_x, to_y = lefts[layer], MARGIN + height
        bend = (x + to_x) / 2
        path += f"C{bend:.1f} {y:.1f} {bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
        if layer < last:  # straight through the layer, between its boxes
            x += widths[layer]
            path += f"H{x:.1f}"
    return f'<path d="{path}" fill="none" stroke="#9aa5b1" stroke-width="1.4"/>'
