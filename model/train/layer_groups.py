"""The parts of a network that its gradients and updates are told of: embeddings, the layers in three thirds, what stands on them.

A table of twenty-four layers is no figure that anybody looks at; a gradient that grows or dies towards the bottom shows in thirds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

GROUPS = ("embeddings", "layers_lower", "layers_middle", "layers_upper", "heads")
_THIRDS = GROUPS[1:4]
_PLACE = re.compile(r"(?P<encoder>(?:^|.*\.)encoder)\.(?:(?P<embeddings>embeddings)|(?:layers|groups)\.(?P<layer>\d+))\.")


def groups_of(names: Iterable[str]) -> Callable[[str], str]:
    """Parameter's name -> group, for the network whose parameters have these names.

    Of n layers, layer i from 0 is in third 3 i // n; each encoder (ELECTRA has two) is cut by its own number. What stands in an encoder
    beside embeddings and layers (a last norm, tables of relative positions) counts among the heads.
    """
    layers: dict[str, int] = {}
    for name in names:
        found = _PLACE.match(name)
        if found is not None and found["layer"] is not None:
            layers[found["encoder"]] = max(layers.get(found["encoder"], 0), int(found["layer"]) + 1)

    def group(name: str) -> str:
        found = _PLACE.match(name)
        if found is None:
            return GROUPS[-1]
        if found["embeddings"] is not None:
            return GROUPS[0]
        return _THIRDS[3 * int(found["layer"]) // layers[found["encoder"]]]

    return group
