"""A log line of a training as a person reads it, in 80 columns; `docs/operations.md` has the names of all its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from pipeline.core.humanize import si

WIDTH = 80
_OF_ONE = "_loss"  # ends the name of one objective's
SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (  # the most wanted first: what has no room is left out
    ("loss", "loss", "{:.3f}".format),
    ("heldout_loss", "held out", "{:.3f}".format),
    ("learning_rate", "lr", "{:.1e}".format),
    ("tokens_per_second", "tok/s", si),
    ("mfu", "mfu", "{:.0%}".format),
    ("grad_norm", "|g|", "{:.2g}".format),
    ("data_wait", "waits", "{:.0%}".format),
)


def training_line(values: Mapping[str, Any], name: str = "") -> str:
    """`step 1,200  loss 6.512  held out 6.431  lr 9.8e-05  tok/s 18.2k  mfu 41%`; empty of what is no training's line. The losses of several
    objectives follow the loss that they add up to.
    """
    if "step" not in values or "learning_rate" not in values:
        return ""
    line = f"{name} step {values['step']:,}".lstrip()
    for part in _parts({**values, **_objectives(values)}):
        if len(line) + 2 + len(part) <= WIDTH:
            line += f"  {part}"
    return line


def live_figures(values: Mapping[str, Any], most: int) -> str:
    """The most wanted figures of a training's line, for what is no line of its own; empty of what is none."""
    return "  ".join(islice(_parts(values), most)) if "learning_rate" in values else ""


def _objectives(values: Mapping[str, Any]) -> dict[str, str]:
    """The losses of several objectives, told under the name of their sum; nothing where there is but one."""
    found = {name: value for name, value in values.items() if name.endswith(_OF_ONE) and not name.startswith("heldout_")}
    parts = [f"{name.removesuffix(_OF_ONE)} {value:.3f}" for name, value in found.items() if isinstance(value, float)]
    return {"loss": "  ".join([f"loss {values['loss']:.3f}", *parts])} if len(parts) > 1 and "loss" in values else {}


def _parts(values: Mapping[str, Any]) -> Iterator[str]:
    for name, shown, told in SHOWN:
        value = values.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, (int, float)):
            yield f"{shown} {told(value)}"
