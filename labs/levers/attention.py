"""The flash attention of the chip, FA4 or FA3, in place of torch's FlashAttention 2.

torch.nn.attention puts them behind the operator that `varlen_attention` calls, so no layer changes.
Both refuse dropout of the probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import attention

from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.attention_kernels import varlen_attention

# torch's name: major compute capabilities, module, package, whether compiled layers can have it.
# FA3 in compiled graphs: pytorch issue 177442.
KERNELS = {
    "FA4": ((9, 10), "flash_attn.cute", "flash-attn-4", True),
    "FA3": ((9,), "flash_attn_interface", "flash-attn-3", False),
}
DEFAULT = "attention: torch's FlashAttention 2"
CLOSE = 0.02  # greatest difference from it in bf16, relative to the largest value


def is_installed(module: str) -> bool:
    """Return True if `module` can be found; only its package is imported."""
    try:
        return find_spec(module) is not None
    except Exception:  # its package is missing, or its libraries are for another torch
        return False


def choose(
    major: int, dropout: float, compiled: bool, has: Callable[[str], bool] = is_installed
) -> tuple[str, str]:
    """Return torch's name of the kernel, empty for the default, and a sentence for the log.

    Args:
        major: major compute capability of the GPU.
        dropout: largest dropout of attention probabilities.
        has: tells whether a module is installed.
    """
    fitting = {name: kernel for name, kernel in KERNELS.items() if major in kernel[0]}
    if not hasattr(attention, "activate_flash_attention_impl"):
        return "", f"{DEFAULT}; torch {torch.__version__} has no other, use 2.13 or later"
    if not fitting:
        return "", f"{DEFAULT}; no other is for compute capability {major}"
    if dropout:
        return "", f"{DEFAULT}; no other has attention_dropout ({dropout:g}), set it to 0"
    for name, (_, module, package, compiles) in fitting.items():
        if has(module) and (compiles or not compiled):
            return name, f"attention: {name} ({package})"
    barred = [name for name, (_, module, *_) in fitting.items() if has(module)]
    why = f"{barred[0]} is not for compiled layers, " if barred else ""
    return "", f"{DEFAULT}; {why}install flash-attn-4 (extra gpu)"


def activate(network: nn.Module, device: torch.device, compiled: bool) -> str:
    """Activate the best kernel for this process; return a sentence for the log.

    It is tried before. It stays off if it fails, or differs from FlashAttention 2.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, SelfAttention)]
    dropout = max((layer.dropout for layer in layers), default=0.0)
    name, sentence = choose(torch.cuda.get_device_capability(device)[0], dropout, compiled)
    if not name:
        return sentence
    expected = list(_trial(layers, device))
    try:
        attention.activate_flash_attention_impl(name)
        for found, right in zip(_trial(layers, device), expected, strict=True):
            apart = float((found - right).abs().max() / right.abs().max())
            if not apart <= CLOSE:  # NaN is far
                raise RuntimeError(f"it differs by {apart:.2g} of the largest value")
    except Exception as error:
        attention.restore_flash_attention_impl()
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"{DEFAULT}; {name} was tried: {why}"
    return sentence


def _trial(layers: list[SelfAttention], device: torch.device) -> Iterator[Tensor]:
    """Yield output and gradients over three sequences, for each head size and window."""
    bounds = torch.tensor([0, 40, 40, 300], dtype=torch.int32, device=device)
    random = torch.Generator().manual_seed(1)
    for size, window in dict.fromkeys((one.head_size, one.pattern.window) for one in layers):
        values = torch.randn(4, 300, 2, size, generator=random).to(device, torch.bfloat16)
        inputs = [tensor.requires_grad_() for tensor in values[:3].unbind()]
        query, key, value = inputs
        mixed = varlen_attention(query, key, value, bounds, 260, window, False, 0.0)
        yield from (mixed.detach(), *torch.autograd.grad(mixed, inputs, values[3]))
