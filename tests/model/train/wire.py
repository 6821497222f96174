"""What ranks send each other in a training: bytes of the collectives that add gradients up, by
type. Run as one of two ranks: `python -m tests.model.train.wire DIRECTORY ENGINE …`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.model.train.engine_cases import ENGINES

SUMS = (
    "allreduce_",
    "reduce_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
)
STEPS = 2
REDUCES = ("fp32", "bf16")


class Wire(TorchDispatchMode):
    """Counts bytes of floating-point numbers that are summed over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if func.namespace == "c10d" and func.overloadpacket.__name__ in SUMS:
            sent = [
                item
                for item in tree_leaves(args)
                if isinstance(item, Tensor) and item.is_floating_point()
            ]
            for tensor in sent:
                self.bytes[str(tensor.dtype)] += tensor.numel() * tensor.itemsize
        return func(*args, **(kwargs or {}))


def _main(directory: Path, names: Sequence[str]) -> None:
    from cloze.core.stages.execution import Execution
    from cloze.model.train.distributed import init_distributed
    from tests.model.datasets import write_dataset
    from tests.model.train.engine_cases import Case, _train

    world = init_distributed(Execution(threads=1, device="cpu"))
    if world.is_rank_zero:
        write_dataset(directory / "nsp", vocab_size=67)
    world.decide_on_rank_zero(lambda: 0)
    found = []
    wanted = [(engine, zero) for engine, zero in ENGINES if f"{engine}{zero}" in names]
    for (engine, zero), reduce in itertools.product(wanted, REDUCES):
        with Wire() as wire:
            _train(
                Case("bert", engine, zero, "bf16", 2, reduce=reduce),
                str(directory / "nsp"),
                world,
                STEPS,
            )
        found.append([[engine, zero, reduce], dict(wire.bytes)])
    if world.is_rank_zero:
        (directory / "wire.json").write_text(json.dumps(found))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
