"""Precision and device: what `auto` is, what a checkpoint asks for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloze.core.errors import UsageError
from cloze.model import hardware
from cloze.model.train import precision
from cloze.model.train.precision import (
    autocast,
    check_grad_reduce_dtype,
    placement,
    resolve,
    resolve_device,
    resolve_for_run,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
EMULATED = "precision fp16 is for GPUs: this CPU only emulates it; bf16 or fp32 are much faster"
GOES_ON = "continuing in bf16, as the checkpoint was made, although this machine only emulates it"


@pytest.fixture(params=[True, False], ids=["native", "emulated"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the machine multiplies bf16."""
    capability = (8, 0) if request.param else (7, 5)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(hardware, "bf16_core_speed", lambda: 1e11 if request.param else None)
    return bool(request.param)


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_auto_is_bf16_where_it_is_multiplied(native: bool, device: torch.device) -> None:
    assert precision.native_bf16(device) is native
    assert resolve("auto", device) == ("bf16" if native else "fp32")
    assert [resolve(name, device) for name in ("fp32", "bf16", "fp16")] == ["fp32", "bf16", "fp16"]
    assert placement("cpu", "auto") == {"device": CPU, "precision": "bf16" if native else "fp32"}


@pytest.mark.parametrize(
    ("requested", "recorded", "device", "found", "said"),
    [
        ("auto", None, CPU, "auto", []),
        ("fp32", None, CPU, "fp32", []),
        ("fp16", None, CPU, "fp16", [EMULATED]),
        ("fp16", None, GPU, "fp16", []),
        ("fp16", "fp16", CPU, "fp16", [EMULATED]),
        ("auto", "fp32", GPU, "fp32", []),
        ("auto", "fp16", CPU, "fp16", []),
        ("auto", "bf16", CPU, "bf16", [GOES_ON]),
        ("bf16", "bf16", GPU, "bf16", [GOES_ON]),
    ],
)
def test_a_run_keeps_the_precision_of_its_checkpoint(
    native: bool,
    requested: Any,
    recorded: str | None,
    device: torch.device,
    found: str,
    said: list[str],
) -> None:
    notes = ["before"]
    wanted = {"auto": "bf16" if native else "fp32"}.get(found, found)
    assert resolve_for_run(requested, recorded, device, notes) == wanted
    assert notes == ["before", *(note for note in said if note == EMULATED or not native)]


def test_another_precision_than_the_checkpoints_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        resolve_for_run("fp32", "bf16", CPU, [])
    assert str(refused.value) == (
        "precision (fp32) is not that of the checkpoint to resume (bf16); leave it at auto or bf16, or train in "
        "another directory"
    )


def test_gradients_are_reduced_in_no_lower_precision() -> None:
    for reduced, computed in (("bf16", "bf16"), ("fp32", "fp32"), ("fp16", "fp32")):
        check_grad_reduce_dtype(reduced, computed)  # type: ignore[arg-type]
    for computed in ("fp32", "fp16"):
        with pytest.raises(UsageError) as refused:
            check_grad_reduce_dtype("bf16", computed)  # type: ignore[arg-type]
        assert str(refused.value) == (
            f"grad_reduce_dtype (bf16) requires precision bf16, and precision is {computed}; use --precision bf16, "
            f"or leave grad_reduce_dtype out"
        )


@pytest.mark.parametrize(("name", "dtype"), precision.DTYPES.items())
def test_products_are_of_the_precision(name: Any, dtype: torch.dtype) -> None:
    if name == "fp16":
        assert dtype is torch.float16
        return
    with autocast(name, "cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype
    # int8: what is no product of a layer
    kinds = {"fp32": torch.float32, "int8": torch.float32, "bf16": torch.bfloat16}
    assert dtype is kinds[name]


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [resolve_device(name) for name in ("auto", "cpu")] == [CPU, CPU]
    with pytest.raises(UsageError) as refused:
        resolve_device("cuda")
    assert str(refused.value) == (
        "device (cuda) is not available on this machine; use auto or cpu, or install torch with CUDA and a driver"
    )
    with pytest.raises(UsageError) as refused:
        resolve_device("tpu")
    assert str(refused.value) == "device (tpu) is unknown; use auto, cpu or cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [resolve_device(name) for name in ("auto", "cpu", "cuda")] == [GPU, CPU, GPU]
    assert resolve_device("cuda", 1) == torch.device("cuda", 1)
    with pytest.raises(UsageError) as refused:
        resolve_device("auto", 2)
    assert str(refused.value) == (
        "processes (3 or more) is greater than the number of GPUs (2); use 2 or fewer"
    )
