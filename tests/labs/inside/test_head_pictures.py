"""The picture of attention heads counts layers in whole numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cloze.labs.inside import plots as head_plots


@pytest.mark.parametrize("layers", [2, 3])
def test_layers_are_whole_numbers(monkeypatch: pytest.MonkeyPatch, layers: int) -> None:
    figures: list[Any] = []

    def kept(figure: object) -> str:
        figures.append(figure)
        return "svg"

    monkeypatch.setattr(head_plots, "svg", kept)
    values = [[0.25, None, 0.5]] * layers
    assert head_plots.draw_heads({"by_head": dict.fromkeys(head_plots.TITLES, values)}) == "svg"
    (figure,) = figures
    assert [axes.get_title() for axes in figure.axes] == list(head_plots.TITLES.values())
    for axes, name in zip(figure.axes, head_plots.TITLES, strict=True):
        assert all(float(tick).is_integer() for tick in axes.get_xticks())
        assert axes.get_xlim() == (0.5, layers + 0.5)
        mean, dots = axes.lines
        assert mean.get_xydata().tolist() == [[n, 0.375] for n in range(1, layers + 1)]
        assert dots.get_xydata().tolist() == [
            [n, value] for n in range(1, layers + 1) for value in (0.25, 0.5)
        ]
        assert (float(axes.get_ylim()[1]) == 1.0) is (name != "entropy")
    assert re.fullmatch("layer", figure.get_supxlabel())
