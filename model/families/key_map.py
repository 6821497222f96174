"""Tables of parameter names: Cloze's and Hugging Face's, both ways, and what else files have.

Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cloze.core.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

_PLACEHOLDERS = {"{n}": r"(?P<n>\d+)", "{m}": r"(?P<m>\d+)", "{p}": r"(?P<p>weight|bias)"}


def _pattern(template: str) -> re.Pattern[str]:
    expression = re.escape(template)
    for placeholder, group in _PLACEHOLDERS.items():
        expression = expression.replace(re.escape(placeholder), group)
    return re.compile(expression)


class KeyMap:
    """Reversible table of parameter names.

    Args:
        rows: pairs (Cloze's name, Hugging Face's name) with the placeholders `{n}` and `{m}`,
            numbers of layers, and `{p}`, weight or bias. Both sides have equal placeholders.
        parts: part of a Hugging Face name -> those of the equal parts in which files have it.
    """

    def __init__(
        self,
        rows: Iterable[tuple[str, str]],
        parts: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self.rows, self.parts = tuple(rows), parts
        for cloze_name, hf_name in self.rows:
            if any((mark in cloze_name) != (mark in hf_name) for mark in _PLACEHOLDERS):
                raise ValueError(f"{cloze_name} and {hf_name} have different placeholders")

    def to_hf(self, cloze_name: str) -> str | None:
        """Return Hugging Face's name of a parameter; None if the table does not have it."""
        return _translate(cloze_name, self._to_hf)

    def from_hf(self, hf_name: str) -> str | None:
        """Return Cloze's name of a parameter; None if the table does not have it."""
        return _translate(hf_name, self._from_hf)

    def split(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Return a tensor of Hugging Face's name as files have it."""
        for whole, parts in self.parts.items():
            if whole in name:
                names = [name.replace(whole, part) for part in parts]
                pieces = tensor.chunk(len(parts))
                return {one: piece.clone() for one, piece in zip(names, pieces, strict=True)}
        return {name: tensor}

    def join(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a file, those stored in parts as one."""
        import torch

        joined = dict(state)
        for whole, parts in self.parts.items():
            for first in [name for name in state if parts[0] in name]:
                names = [first.replace(parts[0], part) for part in parts]
                if joined.keys() >= set(names):
                    pieces = [joined.pop(name) for name in names]
                    joined[first.replace(parts[0], whole)] = torch.cat(pieces)
        return joined

    # Compiled at the first use: the command line imports all tables and translates nothing.
    @cached_property
    def _to_hf(self) -> list[tuple[re.Pattern[str], str]]:
        return [(_pattern(cloze_name), hf_name) for cloze_name, hf_name in self.rows]

    @cached_property
    def _from_hf(self) -> list[tuple[re.Pattern[str], str]]:
        return [(_pattern(hf_name), cloze_name) for cloze_name, hf_name in self.rows]


def _translate(name: str, rows: list[tuple[re.Pattern[str], str]]) -> str | None:
    for pattern, template in rows:
        match = pattern.fullmatch(name)
        if match:
            return template.format(**match.groupdict())
    return None


@dataclass(frozen=True, slots=True)
class Drop:
    """Weights that files may contain and a model does not take.

    Attributes:
        names: their Hugging Face names; a star stands for any characters.
        copy_of: the original that they repeat; those that differ are read if `keys` has a row.
        must_be: "zero" or "exact" (fp32 at least); others are refused. Empty: any.
        named: whether an import names what it drops; buffers and copies are no loss.
        when: (model, fine-tuning head) -> whether this applies. Default: always.
    """

    names: str
    copy_of: str = ""
    must_be: str = ""
    named: bool = False
    when: Callable[[Any, str | None], bool] = lambda model, head: True

    def check(self, tensor: Tensor, where: str) -> None:
        """Raise DataError if the weight is not what it must be."""
        if self.must_be == "zero" and bool(tensor.any()):
            raise DataError(f"{where} must be 0; use another model")
        if self.must_be == "exact" and tensor.element_size() < 4:
            raise DataError(f"{where} is rounded; save the model in fp32")

    def repeats(self, tensor: Tensor, weights: Mapping[str, Tensor]) -> bool:
        """Return whether the weight equals its original."""
        original = weights.get(self.copy_of)
        if original is None or tensor.shape != original.shape:
            return False
        return bool((tensor == original).all())


POSITION_IDS = Drop("*embeddings.position_ids")  # a buffer that old versions saved


def decoder_copies(base: str, head: str) -> tuple[Drop, ...]:
    """Return the drops of a model whose head repeats the word embeddings and its own bias."""
    return (
        Drop(f"{head}.decoder.weight", f"{base}.embeddings.word_embeddings.weight"),
        Drop(f"{head}.decoder.bias", f"{head}.bias"),
    )
