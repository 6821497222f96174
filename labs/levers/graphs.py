"""Forward and backward passes as CUDA graphs: the host launches a graph, not each kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.model.layers.batch import Batch
from cloze.model.layers.layout import BatchLayout

MOST = 64  # graphs
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]


class StepGraphs:
    """A graph for each shape of a micro-batch.

    The first batch of a shape runs as usual, which compiles and warms up. The second is captured;
    it and all later ones are copied into the graph's batch, and the graph is replayed. Gradients
    must stay where they are: when one has moved, all graphs are captured again.

    Args:
        parameters: what has gradients.
        forward_backward: (batch, counts) to figures; adds to the gradients.
        capture: makes a graph of a function, and returns what replays it.

    Attributes:
        graphs: by shape, the tensors that a graph reads, and what replays it; None after one batch.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        forward_backward: Callable[[Batch, Tensor], Tensor],
        capture: Capture,
    ) -> None:
        self._parameters, self._run, self._capture = parameters, forward_backward, capture
        self._gradients: list[Tensor | None] = []
        self.graphs: dict[Any, tuple[list[Tensor], Callable[[], Tensor]] | None] = {}

    def run(self, batch: Batch, counts: Tensor) -> Tensor:
        """Run one micro-batch on the device; return its figures."""
        gradients = [parameter.grad for parameter in self._parameters]
        moved = len(gradients) != len(self._gradients) or any(
            new is not old for new, old in zip(gradients, self._gradients, strict=True)
        )
        if moved:
            self.graphs.clear()
            self._gradients = gradients
        key = _key(batch)
        # Autograd would keep a first gradient in the graph's memory, and replays overwrite it.
        if key not in self.graphs or any(gradient is None for gradient in gradients):
            if len(self.graphs) < MOST:
                self.graphs[key] = None
            return self._run(batch, counts)
        graph = self.graphs[key]
        if graph is None:
            # The caller's tensors may be read again, and the next batch is written to these.
            own, own_counts = _cloned(batch), counts.clone()
            replay = self._capture(lambda: self._run(own, own_counts))
            graph = self.graphs[key] = [*_tensors(own), own_counts], replay
        torch._foreach_copy_(graph[0], [*_tensors(batch), counts])
        return graph[1]().clone()  # the next replay overwrites it


def capture_on_gpu() -> Capture:
    """Return what captures CUDA graphs; their random numbers follow the generator's seed.

    All graphs share their memory, as none of them reads what another has written.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Only this thread may not wait for the device: the loader's pins memory meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            figures = run()

        def replay() -> Tensor:
            graph.replay()
            return figures

        return replay

    return capture


def _parts(batch: Mapping[str, Any]) -> list[Any]:
    """Return the batch's values in order, a layout's one by one."""
    found = []
    for name, value in batch.items():
        if isinstance(value, BatchLayout):
            found += [getattr(value, field.name) for field in fields(value)]
        elif name != "step":  # a number of the host
            found.append(value)
    return found


def _cloned(batch: Batch) -> Batch:
    def clone(value: Any) -> Any:
        return value.fresh(torch.clone) if isinstance(value, BatchLayout) else value.clone()

    return cast(Batch, {name: clone(value) for name, value in batch.items()})


def _tensors(batch: Mapping[str, Any]) -> list[Tensor]:
    return [part for part in _parts(batch) if isinstance(part, Tensor)]


def _key(batch: Mapping[str, Any]) -> Any:
    """Return what a graph depends on: names, shapes, and a layout's numbers."""
    shapes = (part.shape if isinstance(part, Tensor) else part for part in _parts(batch))
    return tuple(batch), tuple(shapes)
