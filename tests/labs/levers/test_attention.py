"""Which attention kernel a GPU gets, and that a wrong or broken one stays off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import attention as torch_attention

from cloze.labs.levers import attention
from cloze.labs.levers.attention import KERNELS, choose
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.attention_kernels import varlen_attention
from tests.model import flash_on_cpu as flash_on_cpu

CPU = torch.device("cpu")


def having(*names: str) -> Callable[[str], bool]:
    return {KERNELS[name][1] for name in names}.__contains__


@pytest.mark.parametrize(
    ("major", "dropout", "compiled", "has", "name", "says"),
    [
        (9, 0.0, True, ("FA4", "FA3"), "FA4", "attention: FA4 (flash-attn-4)"),
        (9, 0.0, False, ("FA3",), "FA3", "attention: FA3 (flash-attn-3)"),
        (9, 0.0, True, ("FA3",), "", "FA3 is not for compiled layers, install flash-attn-4"),
        (10, 0.0, True, ("FA4",), "FA4", "FA4"),
        (10, 0.0, False, ("FA3",), "", "install flash-attn-4"),
        (9, 0.0, True, (), "", "install flash-attn-4 (extra gpu)"),
        (9, 0.1, True, ("FA4", "FA3"), "", "attention_dropout (0.1), set it to 0"),
        (8, 0.0, True, ("FA4", "FA3"), "", "compute capability 8"),
        (12, 0.0, True, ("FA4", "FA3"), "", "compute capability 12"),
    ],
)
def test_the_kernel_follows_from_chip_dropout_and_wheels(
    major: int, dropout: float, compiled: bool, has: tuple[str, ...], name: str, says: str
) -> None:
    found, sentence = choose(major, dropout, compiled, having(*has))
    assert found == name
    assert says in sentence
    assert name or sentence.startswith("attention: torch's FlashAttention 2; ")


def test_an_older_torch_has_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attention", SimpleNamespace())
    assert choose(9, 0.0, True, having("FA4"))[0] == ""


def test_torch_has_the_names_and_gives_the_default_back() -> None:
    """What `activate` asks of torch's prototype; a release that renames it must be seen here."""
    assert torch_attention.list_flash_attention_impls() == [*sorted(KERNELS)]
    assert torch_attention.current_flash_attention_impl() is None
    with pytest.raises(Exception, match="flash"):  # no wheel here
        torch_attention.activate_flash_attention_impl("FA4")
    torch_attention.restore_flash_attention_impl()
    assert torch_attention.current_flash_attention_impl() is None


@pytest.mark.parametrize("name", ["flash_attn.cute", "nowhere.at.all", "flash_attn_interface"])
def test_a_missing_wheel_is_no_error(name: str) -> None:
    assert not attention.is_installed(name)


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError"])
def test_a_wheel_for_another_torch_is_no_error(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for a module imports its package, whose libraries may need other symbols."""
    (tmp_path / "broken_wheel").mkdir()
    (tmp_path / "broken_wheel" / "__init__.py").write_text(f"raise {error}('undefined symbol')")
    monkeypatch.syspath_prepend(tmp_path)
    assert not attention.is_installed("broken_wheel.cute")


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU with the wheel, whose kernel is the stand-in's; returns what was called."""
    called: list[str] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(attention.choose, "__defaults__", (having("FA4"),))
    for name in ("activate_flash_attention_impl", "restore_flash_attention_impl"):
        monkeypatch.setattr(torch_attention, name, lambda *_, name=name: called.append(name))
    return called


def network(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        SelfAttention(32, 2, dropout=dropout), SelfAttention(32, 2, dropout=0.0, window=7)
    )


def test_a_kernel_that_agrees_stays(hopper: list[str]) -> None:
    assert attention.activate(network(), CPU, True) == "attention: FA4 (flash-attn-4)"
    assert hopper == ["activate_flash_attention_impl"]


def test_dropout_of_one_layer_keeps_the_default(hopper: list[str]) -> None:
    assert "set it to 0" in attention.activate(network(0.1), CPU, True)
    assert not hopper


@pytest.mark.parametrize("fault", ["values", "nan", "gradient", "raises"])
def test_a_kernel_that_is_wrong_is_taken_back(
    hopper: list[str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = varlen_attention

    def wrong(*inputs: Any) -> torch.Tensor:
        mixed = right(*inputs)
        if not hopper or inputs[5] is None:  # before; or a window that is handled
            return mixed
        if fault == "raises":
            raise RuntimeError("dropout_p must be 0\nand more")
        if fault == "gradient":
            return mixed.detach() + 1.1 * (mixed - mixed.detach())
        return mixed * {"values": 1.05, "nan": torch.nan}[fault]

    monkeypatch.setattr(attention, "varlen_attention", wrong)
    sentence = attention.activate(network(), CPU, True)
    assert sentence.startswith("attention: torch's FlashAttention 2; FA4 was tried: ")
    assert "\n" not in sentence
    assert hopper == ["activate_flash_attention_impl", "restore_flash_attention_impl"]
