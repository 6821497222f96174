"""The graph of a run as inline SVG: nodes as boxes in layers, coloured and marked by state, edges from inputs to what takes them.

Colours are attributes, which any page's style may overrule: `STYLE` does so for dark screens. No script, no font, nothing from outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from flows.views.graph_layout import Layout, layout

BOX_HEIGHT, GAP, THREAD, BETWEEN, MARGIN = 44.0, 14.0, 4.0, 46.0, 3.0
NAME_WIDTH, LINE_WIDTH = 7.3, 6.0  # pixels a character takes at the two sizes, on the safe side
MARK, PADDING = 20.0, 10.0
MOST_CHARACTERS = 36
MOST_NODES = 60  # a graph with more of them draws those of one stage in one layer as one box

# state -> fill, border, mark
STATES: dict[str, tuple[str, str, str]] = {
    "waiting": ("#f7f9fb", "#9aa5b1", "·"),
    "running": ("#e3effb", "#2563a8", "▶"),
    "finished": ("#e6f4ea", "#2f855a", "✓"),
    "cached": ("#f0f7f2", "#8bb79d", "="),
    "failed": ("#fbe9e7", "#b83227", "✕"),
    "crashed": ("#fbe9e7", "#b83227", "✕"),
    "skipped": ("#f7f9fb", "#cbd2d9", "⊘"),
    "stopped": ("#fdf0d5", "#d97706", "■"),
}
_WORST_FIRST = ("failed", "crashed", "running", "stopped", "waiting", "skipped", "finished", "cached")

_DARK = {"waiting": ("#1f2730", "#5b6875"), "running": ("#14304f", "#5fa3e6"), "finished": ("#15352a", "#4fb487"),
         "cached": ("#1a2c26", "#44715c"), "failed": ("#46201c", "#e8756a"), "crashed": ("#46201c", "#e8756a"),
         "skipped": ("#1f2730", "#3d4852"), "stopped": ("#40300f", "#e0a043")}  # fmt: skip
STYLE = "@media (prefers-color-scheme: dark) {{ {rules} }}".format(
    rules=" ".join(
        [
            ".graph text { fill: #e4e7eb } .graph .line { fill: #9aa5b1 } .graph path { stroke: #5b6875 } .graph .implied { stroke: #323d47 }",
            *(f".graph .{state} rect {{ fill: {fill}; stroke: {line} }}" for state, (fill, line) in _DARK.items()),
        ]
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePicture:
    """A node as the picture needs it.

    Attributes:
        stage: what it is an instance of.
        state: one of `STATES`; any other is drawn as waiting.
        after: the names of the nodes that it takes inputs from.
        line: a few words below its name, such as its headline figure.
        link: where a click leads; None: nowhere.
    """

    stage: str
    state: str
    after: tuple[str, ...] = ()
    line: str = ""
    link: str | None = None


def graph_svg(nodes: Mapping[str, NodePicture]) -> str:
    """An `<svg class="graph">` of its natural size in pixels; wide ones want a box that scrolls. Names and lines are escaped.

    Args:
        nodes: by name, in an order in which a node comes after its inputs; inputs that are not among them are left out.
    """
    nodes = _gathered(nodes) if len(nodes) > MOST_NODES else nodes
    placed = layout({name: node.after for name, node in nodes.items()}, box=BOX_HEIGHT, gap=GAP, thread=THREAD)
    widths: Counter[int] = Counter()
    for name, node in nodes.items():
        widths[placed.layers[name]] = max(widths[placed.layers[name]], round(_width(name, node)))
    lefts, right = [], MARGIN
    for layer in range(len(widths)):
        lefts.append(right)
        right += widths[layer] + BETWEEN
    width, height = max(0.0, right - BETWEEN) + MARGIN, placed.height + 2 * MARGIN
    ways = sorted(placed.ways, key=lambda edge: edge not in placed.implied)  # the faint ones lie below the others
    parts = [_edge(edge, placed, lefts, widths) for edge in ways]
    parts += [_box(name, node, lefts[placed.layers[name]], placed.heights[name], widths[placed.layers[name]]) for name, node in nodes.items()]  # fmt: skip
    states = ", ".join(f"{count} {state}" for state, count in Counter(node.state for node in nodes.values()).items())
    return (
        f'<svg class="graph" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(f"{len(nodes)} nodes: {states}")}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="Inter, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif">{"".join(parts)}</svg>'
    )


def _gathered(nodes: Mapping[str, NodePicture]) -> dict[str, NodePicture]:
    """A large graph by sections of nodes: those of one stage in one layer are one box, with the worst of their states."""
    depth: dict[str, int] = {}
    for name, node in nodes.items():
        depth[name] = 1 + max((depth[parent] for parent in node.after if parent in depth), default=-1)
    groups: dict[tuple[str, int], list[str]] = {}
    for name, node in nodes.items():
        groups.setdefault((node.stage, depth[name]), []).append(name)
    title = {key: names[0] if len(names) == 1 else f"{key[0]} × {len(names)}" for key, names in groups.items()}
    used = Counter(title.values())
    title = {key: text if used[text] == 1 else f"{text} ({key[1]})" for key, text in title.items()}
    of = {name: title[key] for key, names in groups.items() for name in names}
    gathered = {}
    for key, names in groups.items():
        states = Counter(nodes[name].state for name in names)
        after = dict.fromkeys(of[parent] for name in names for parent in nodes[name].after if parent in of)
        after.pop(title[key], None)
        gathered[title[key]] = (
            NodePicture(
                stage=key[0],
                state=next((state for state in _WORST_FIRST if states[state]), "waiting"),
                after=tuple(after),
                line=", ".join(f"{count} {state}" for state, count in states.most_common()),
            )
            if len(names) > 1
            else NodePicture(
                stage=key[0],
                state=nodes[names[0]].state,
                after=tuple(after),
                line=nodes[names[0]].line,
                link=nodes[names[0]].link,
            )
        )
    return gathered


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def _width(name: str, node: NodePicture) -> float:
    return MARK + 2 * PADDING + max(NAME_WIDTH * len(_cut(name)), LINE_WIDTH * len(_cut(node.line)))


def _box(name: str, node: NodePicture, left: float, middle: float, width: float) -> str:
    state = node.state if node.state in STATES else "waiting"
    fill, line, mark = STATES[state]
    top, text = MARGIN + middle - BOX_HEIGHT / 2, left + PADDING + MARK
    first = top + (18 if node.line else BOX_HEIGHT / 2 + 4.5)
    box = (
        f"<title>{escape(f'{name}: {node.state}')}{escape(f' – {node.line}') if node.line else ''}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX_HEIGHT:.1f}" rx="7" fill="{fill}" stroke="{line}" stroke-width="1.5"/>'
        f'<text class="mark" x="{left + PADDING:.1f}" y="{top + BOX_HEIGHT / 2 + 5:.1f}" font-size="14" fill="{line}">{mark}</text>'
        f'<text x="{text:.1f}" y="{first:.1f}" font-size="13" font-weight="600" fill="#1f2933">{escape(_cut(name))}</text>'
    )
    if node.line:
        box += f'<text class="line" x="{text:.1f}" y="{top + 34:.1f}" font-size="11" fill="#616e7c">{escape(_cut(node.line))}</text>'
    if node.link:
        box = f'<a href="{escape(node.link)}">{box}</a>'
    return f'<g class="{state}">{box}</g>'


def _edge(edge: tuple[str, str], placed: Layout, lefts: list[float], widths: Mapping[int, int]) -> str:
    source, target = edge
    first, last = placed.layers[source], placed.layers[target]
    x, y = lefts[first] + widths[first], MARGIN + placed.heights[source]
    path = f"M{x:.1f} {y:.1f}"
    for layer, height in zip(range(first + 1, last + 1), [*placed.ways[edge], placed.heights[target]], strict=True):
        to_x, to_y = lefts[layer], MARGIN + height
        bend = (x + to_x) / 2
        path += f"C{bend:.1f} {y:.1f} {bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
        if layer < last:  # straight through the layer, between its boxes
            x += widths[layer]
            path += f"H{x:.1f}"
    look = 'class="implied" stroke="#dde2e7"' if edge in placed.implied else 'stroke="#9aa5b1"'
    return f'<path d="{path}" fill="none" {look} stroke-width="1.4"/>'
