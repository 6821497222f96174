"""How many kernels a step starts: each takes the host some microseconds, which a GPU waits for where
the kernels are short. A bound that a change exceeds is a step that became slower on GPUs.

Counted are the operations that torch dispatches, but views and allocations, which start no kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cloze.model.data.batch import move
from cloze.model.families.models import new_model
from cloze.model.layers import attention, cpu
from cloze.model.layers import layout as layout_module
from cloze.model.train.distributed import World
from cloze.model.train.engines.create import create_engine
from cloze.model.train.engines.torch import TorchEngine
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.optimizers.parameters import trained_parameters
from cloze.model.train.setup import hyperparameters, step_duration
from cloze.model.train.spec.engine_choice import EngineConfig
from tests.model.layouts import laid
from tests.model.stand_in import META, stand_in
from tests.model.train.ranks import config
from tests.slices import few
from tests.tiny_models import tiny_batch, tiny_config

LAYERS = 3
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "detach", "_unsafe_view"}


class Launches(TorchDispatchMode):
    """Counts what is dispatched, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.by_name.total()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        name = func.overloadpacket.__name__
        if not func.is_view and name not in ALLOCATIONS and not name.startswith("_record_function"):
            self.by_name[name] += 1
        return func(*args, **(kwargs or {}))


class Varlen(torch.autograd.Function):
    """One operation forward and one backward, as the GPU's kernel."""

    @staticmethod
    def forward(context: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.rsub(query, value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        one = gradient.neg()
        return one, one, one


def create(
    device: torch.device, layers: int, family: str = "bert", precision: str = "fp32", **changes: Any
) -> tuple[TorchEngine, dict[str, Any], Tensor]:
    """An engine of a model with BERT-base's heads, and a batch without padding."""
    model = tiny_config(
        family, num_hidden_layers=layers, hidden_size=48, num_attention_heads=12,
        hidden_dropout=0.1, attention_dropout=0.1,
    )  # fmt: skip
    settings = config(precision=precision, **changes)
    names = model.default_objectives("nsp" if "pair" in model.heads else None)
    scoring = PretrainModule(new_model(model), names, settings.precision)  # type: ignore[arg-type]
    plan = hyperparameters(settings, settings.precision, step_duration(settings))  # type: ignore[arg-type]
    engine = create_engine(
        EngineConfig("torch", 0), scoring, plan, World(0, 1, device), micro_batch=6, accumulation=1
    )
    assert isinstance(engine, TorchEngine)
    batch = move(laid(tiny_batch(rows=6), "packed"), device)
    return engine, batch, torch.ones(len(names), device=device)


@pytest.mark.parametrize(
    ("optimizer", "fixed", "by_tensor"),
    few(
        [("adamw", 30, 0), ("stable-adamw", 120, 1), ("lamb", 120, 1), ("muon", 160, 6)],
        "adamw",
        "muon",
    ),
)
def test_an_update_does_not_start_kernels_by_tensor(
    optimizer: str, fixed: int, by_tensor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipping included. Of a gradient that may be infinite each tensor is masked, by some."""
    stand_in(monkeypatch)
    found = []
    for layers in (LAYERS, LAYERS + 1):
        engine, batch, counts = create(META, layers, optimizer=optimizer)
        for _ in range(2):  # the first one creates the state
            engine.backward(batch, counts, last=True)
            with Launches() as launches:
                engine.step(1e-3)
        tensors = sum(1 for _ in trained_parameters(engine._model))
        found.append((tensors, launches))
    (fewer, before), (more, after) = found
    assert after.total - before.total <= by_tensor * (more - fewer), after.by_name - before.by_name
    assert before.total <= fixed + by_tensor * fewer, before.by_name


@pytest.mark.parametrize(("family", "forward", "backward"), [("bert", 28, 44), ("modern", 30, 39)])
def test_a_layer_starts_few_kernels(
    family: str, forward: int, backward: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16 under autocast, with dropout, not compiled; as many as were counted."""

    def dropout(values: Tensor, share: float) -> Tensor:
        return torch.native_dropout(values, share, True)[0] if share else values

    for module, name in ((cpu, "dropout"), (attention, "drop")):
        monkeypatch.setattr(module, name, dropout)
    monkeypatch.setattr(
        layout_module, "varlen_attention", lambda q, k, v, *_: Varlen.apply(q, k, v)
    )
    found = []
    for layers in (LAYERS, LAYERS + 1):
        engine, batch, counts = create(torch.device("cpu"), layers, family, "bf16")
        with Launches() as forwards:
            loss, _ = engine._trained.train()(batch, counts)
        with Launches() as backwards:
            loss.backward()
        found.append((forwards, backwards))
    a_layer = [after.by_name - before.by_name for before, after in zip(*found, strict=True)]
    assert a_layer[0].total() <= forward, a_layer[0]
    assert a_layer[1].total() <= backward, a_layer[1]
