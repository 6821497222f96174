"""The picture of a graph: every node once, no two boxes over each other, inputs to the left, and
nothing that a name says is markup.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from cloze.flows.report.graph_picture import MOST_NODES, NodePicture, graph_svg, layout

SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    """Of each node its inputs, all of them before it."""
    names = [f"n{number}" for number in range(draw(st.integers(0, 14)))]
    return {
        name: tuple(draw(st.lists(st.sampled_from(names[:at]), unique=True, max_size=6)))
        if at
        else ()
        for at, name in enumerate(names)
    }


@given(graphs())
def test_boxes_do_not_touch_and_inputs_lie_to_the_left(after: dict[str, tuple[str, ...]]) -> None:
    placed = layout(after, box=40, gap=10)
    for name, before in after.items():
        assert all(placed.layers[parent] < placed.layers[name] for parent in before)
        assert 20 - 1e-6 <= placed.heights[name] <= placed.height - 20 + 1e-6
    for one in after:
        for other in after:
            if one < other and placed.layers[one] == placed.layers[other]:
                assert abs(placed.heights[one] - placed.heights[other]) >= 50 - 1e-6


@given(graphs())
def test_every_way_from_a_node_to_another_is_drawn(after: dict[str, tuple[str, ...]]) -> None:
    """Edges that others imply may be left out; what is reached stays the same."""

    def reached(edges: dict[str, set[str]]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name in after:
            found[name] = edges[name].union(*(found[parent] for parent in edges[name]))
        return found

    drawn: dict[str, set[str]] = {name: set() for name in after}
    for source, target in layout(after, box=40, gap=10).edges:
        drawn[target].add(source)
    assert reached(drawn) == reached({name: set(before) for name, before in after.items()})


def test_names_and_lines_are_text() -> None:
    evil = '<script>alert("x")</script>'
    svg = graph_svg({evil: NodePicture(stage="corpus", line="a < b & c")})
    assert "<script" not in svg
    picture = ET.fromstring(svg)
    assert [text.text for text in picture.iter(f"{SVG}text")][1:] == [evil, "a < b & c"]


def test_a_large_matrix_is_drawn_by_stages() -> None:
    nodes = {"pretrain": NodePicture(stage="pretrain")}
    for number in range(MOST_NODES):
        nodes[f"finetune@{number}"] = NodePicture(stage="finetune", after=("pretrain",))
    nodes["report"] = NodePicture(stage="report", after=tuple(nodes))
    picture = ET.fromstring(graph_svg(nodes))
    assert len(list(picture.iter(f"{SVG}rect"))) == 3
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert f"finetune × {MOST_NODES}" in texts
    assert f"{MOST_NODES} finished" in texts
    # the third one is implied by the others
    assert len(list(picture.iter(f"{SVG}path"))) == 2


def test_the_list_has_a_node_a_row_below_its_inputs() -> None:
    after = {"corpus": (), "vocab": ("corpus",), "dataset": ("corpus", "vocab"), "a": ("dataset",),
             "b": ("dataset",), "report": ("a", "b")}  # fmt: skip
    nodes = {
        name: NodePicture(stage=name, after=before, line="9 rows") for name, before in after.items()
    }
    picture = ET.fromstring(graph_svg(nodes, as_list=True))
    boxes = [each.attrib for each in picture.iter(f"{SVG}rect")]
    lefts, tops = ([float(box[side]) for box in boxes] for side in "xy")
    assert tops == sorted(set(tops))
    assert max(tops) + float(boxes[-1]["height"]) < float(picture.attrib["height"])
    assert max(x + float(box["width"]) for x, box in zip(lefts, boxes, strict=True)) < float(
        picture.attrib["width"]
    )
    assert lefts[3] == lefts[4]
    assert lefts[:4] + lefts[5:] == sorted(set(lefts))
    # an edge leaves a box and ends at the left side of another that is further to the right
    for path in picture.iter(f"{SVG}path"):
        x, y, to_y, to_x = map(float, re.findall(r"[\d.]+", path.attrib["d"]))
        assert x < to_x
        assert y < to_y
        assert to_x in lefts


def test_an_empty_list_is_a_picture() -> None:
    assert ET.fromstring(graph_svg({}, as_list=True)).attrib["aria-label"] == "0 nodes"
