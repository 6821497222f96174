"""What of a config becomes parameters in MLflow, where runs are compared by them: few, and the same names in like runs.

A node's are the plain values of its config, and of nested ones what differs from the defaults. The run's are what the config says itself.
All else is in `config.yaml` among the run's artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from flows.tracking.spool import flatten
from pipeline.core.config import StageConfig

MOST = 100  # parameters of a run
CHARACTERS = 500  # of a value
NOT_COMPARED = ("name", "run")  # sections that say how it is run
OPEN = (None, "auto")  # values that the stage settles: what it took is known at its end


def of_node(config: StageConfig, place: Mapping[str, Any]) -> dict[str, str]:
    """A node's parameters.

    Args:
        place: its values in the matrices, by axis.
    """
    identity = config.identity()
    plain = {
        name: value
        for name, value in config.model_dump(mode="json").items()
        if value not in OPEN and isinstance(value, (str, int, float)) and not isinstance(value, bool)
    }
    differing = {name: value for name, value in identity.items() if value not in OPEN}
    axes = {axis: value for axis, value in place.items() if axis not in plain}
    return _short({**axes, **differing, **plain})


def settled(config: StageConfig, summary: Mapping[str, Any]) -> dict[str, str]:
    """What the stage took for the values that the config leaves open, such as the learning rate."""
    left = [name for name, value in config.model_dump(mode="json").items() if value in OPEN]
    return _short({name: summary[name] for name in left if isinstance(summary.get(name), (str, int, float))})


def of_run(config: Mapping[str, Any]) -> dict[str, str]:
    """The run's parameters, `SECTION.KEY`, from what the config itself says of its nodes."""
    return _short({name: section for name, section in config.items() if name not in NOT_COMPARED})


def _short(values: Mapping[str, Any]) -> dict[str, str]:
    """Flat, as text, cut to MLflow's and a reader's measure."""
    found = {}
    for name, value in flatten(values)[:MOST]:
        text = value if isinstance(value, str) else json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
        found[allowed(name)] = text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
    return found


def allowed(name: str) -> str:
    """MLflow's names hold letters, digits and `_-./: `; a node's `@` becomes `/`."""
    return "".join(letter if letter.isalnum() or letter in "_-./: " else "/" if letter == "@" else "_" for letter in str(name))


def metric_name(node: str, figure: str) -> str:
    """A node's figure in the run's metrics: `pretrain.heldout_loss`, `finetune/sst2-1.accuracy`."""
    return allowed(f"{node}.{figure}")
