"""Tensors in safetensors files, written and read one at a time, whole or in slices.

The tensors of a checkpoint are in one file, or in one file per rank:

 model.safetensors
 model-00001-of-00004.safetensors, model-00002-of-00004.safetensors, …

A whole tensor is stored under its name. A sharded tensor is stored as flat slices in any of the
files, each under `NAME[START:STOP]`; the file's metadata maps NAME to the whole shape
("30522,768"). The headers contain all of this, so no index file is needed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch import Tensor

from cloze.core import storage
from cloze.core.errors import DataError

SUFFIX = ".safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
PICKLE = (
    "a pickle, which can run code when it is read; convert it to safetensors where it comes from"
)
BLOCK = 16 << 20  # bytes that are written and hashed at once
MOST_HEADER = 100_000_000  # bytes; limit of the safetensors format
DTYPES = {  # names in the safetensors format
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_KNOWN = {name: dtype for dtype, name in DTYPES.items()}
_PIECE = re.compile(r"(.+)\[(\d+):(\d+)\]")
_PART = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})\.safetensors")


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Consecutive values of a flattened tensor.

    Attributes:
        shape: shape of the whole tensor.
        start: index of the first value in the flattened tensor.
        values: [n], on any device.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    values: Tensor

    @property
    def whole(self) -> bool:
        return self.values.numel() == math.prod(self.shape)

    @property
    def key(self) -> str:
        """Name of the slice in a file."""
        return (
            self.name
            if self.whole
            else f"{self.name}[{self.start}:{self.start + self.values.numel()}]"
        )


def part_name(name: str, number: int, count: int) -> str:
    """Return the file name of part `number` (from 0), such as model-00001-of-00002.safetensors."""
    return (
        name
        if count == 1
        else f"{name.removesuffix(SUFFIX)}-{number + 1:05d}-of-{count:05d}{SUFFIX}"
    )


def write_tensors(
    path: str,
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, Sequence[int]] | None = None,
    commit: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[str, int]:
    """Write tensors as one safetensors file, atomically.

    Tensors that share memory are each written. Tensors are written one at a time, so at most one is
    in memory twice; `safetensors.torch.save` first collects all of them.

    Args:
        shapes: whole shapes of the sharded tensors.
        commit: see `storage.atomic_output`.

    Returns:
        The file's sha256 and its size in bytes.
    """
    # Largest elements first keeps every tensor aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    detached = {name: tensors[name].detach() for name in order}
    metadata = {name: ",".join(map(str, shape)) for name, shape in sorted((shapes or {}).items())}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    end = 0
    for name, tensor in detached.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format requires alignment to 8 bytes
    header_bytes = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(header_bytes)
    with storage.atomic_output(path, commit) as handle:
        handle.write(header_bytes)
        for tensor in detached.values():
            content = _bytes(tensor.to("cpu").contiguous())
            for start in range(0, len(content), BLOCK):
                block = content[start : start + BLOCK]
                handle.write(block)
                digest.update(block)
    return digest.hexdigest(), len(header_bytes) + end


def read_tensors(path: str) -> dict[str, Tensor]:
    """Read a safetensors file onto the CPU.

    Raises:
        DataError: the file is missing, a pickle, or damaged.
    """
    with LazyTensors([path]) as tensors:
        return dict(tensors)


@dataclass(slots=True)
class _Piece:
    """Location of the values [start, stop) of a flattened tensor: a file and a byte offset."""

    start: int
    stop: int
    path: str
    offset: int


@dataclass(slots=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: list[_Piece]


class LazyTensors(MutableMapping[str, Tensor]):
    """The tensors of several files by name, read from disk on every access and never cached.

    Assigned tensors are kept in memory and hide tensors of the same name in the files.

    Raises:
        DataError: a file is missing, a pickle, or damaged; or the files together lack a part of a
            tensor.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self._entries: dict[str, _Entry | Tensor] = {}
        self._opened: tuple[str, IO[bytes]] | None = None
        shapes: dict[str, tuple[int, ...]] = {}
        for path in files:
            self._add(path, shapes)
        for name, entry in self._entries.items():
            assert isinstance(entry, _Entry)
            _check_whole(name, entry, files)

    @classmethod
    def open(cls, directory: str, name: str) -> LazyTensors:
        """Open the file `name` in `directory`, or all parts that it is split into.

        Raises:
            DataError: no such file exists, a part is missing, or one is damaged.
        """
        return cls(part_files(directory, name))

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        return (
            entry
            if isinstance(entry, Tensor)
            else self._read(entry, 0, math.prod(entry.shape)).view(entry.shape)
        )

    def slice(self, name: str, start: int, stop: int) -> Tensor:
        """Read the values [start, stop) of the flattened tensor, and no others."""
        entry = self._entries[name]
        return (
            entry.flatten()[start:stop]
            if isinstance(entry, Tensor)
            else self._read(entry, start, stop)
        )

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self._entries[name] = tensor

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Drop all tensors and close the files."""
        self._entries.clear()
        self._close()

    def __enter__(self) -> LazyTensors:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None

    def _handle(self, path: str) -> IO[bytes]:
        """Return the open file.

        Only one is open at a time: a checkpoint may have more parts than a process may open files.
        """
        if self._opened is None or self._opened[0] != path:
            self._close()
            self._opened = path, storage.open_input(path)
        return self._opened[1]

    def _read(self, entry: _Entry, start: int, stop: int) -> Tensor:
        tensor = torch.empty(stop - start, dtype=entry.dtype)
        for piece in entry.pieces:
            begin, end = max(start, piece.start), min(stop, piece.stop)
            if begin < end:
                handle = self._handle(piece.path)
                handle.seek(piece.offset + (begin - piece.start) * entry.dtype.itemsize)
                _fill(handle, piece.path, _bytes(tensor[begin - start : end - start]))
        return tensor

    def _add(self, path: str, shapes: dict[str, tuple[int, ...]]) -> None:
        """Add the tensors that the file's header lists."""
        if path.endswith(PICKLES):
            raise DataError(f"{path} is {PICKLE}")
        handle, size = self._handle(path), int(storage.stat(path)["size"])
        handle.seek(0)
        try:
            length = int.from_bytes(handle.read(8), "little")
            if not 0 < length <= min(MOST_HEADER, size - 8):
                raise ValueError("no header of safetensors")
            header = json.loads(handle.read(length))
            metadata = header.pop("__metadata__", None) or {}
            sliced_names = {match[1] for match in map(_PIECE.fullmatch, header) if match}
            shapes |= {
                name: tuple(map(int, text.split(",")))
                for name, text in metadata.items()
                if name in sliced_names
            }
            for key, value in header.items():
                dtype, shape = _KNOWN[value["dtype"]], tuple(map(int, value["shape"]))
                begin, end = value["data_offsets"]
                if (
                    end - begin != math.prod(shape) * dtype.itemsize
                    or not 0 <= begin <= end <= size - 8 - length
                ):
                    raise ValueError(f"{key} lies outside of it")
                slice_match = _PIECE.fullmatch(key)
                name, start = (
                    (slice_match[1], int(slice_match[2]))
                    if slice_match and slice_match[1] in shapes
                    else (key, 0)
                )
                entry = self._entries.setdefault(
                    name, _Entry(dtype, shapes[name] if name != key else shape, [])
                )
                assert isinstance(entry, _Entry)
                entry.pieces.append(
                    _Piece(start, start + math.prod(shape), path, 8 + length + begin)
                )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is no safetensors file or is damaged ({error}); use another checkpoint"
            ) from error


def part_files(directory: str, name: str) -> list[str]:
    """Return the path of the file `name` in `directory`, or of all parts that it is split into.

    Raises:
        DataError: neither the file nor a complete set of parts exists.
    """
    path = storage.join(directory, name)
    if storage.exists(path):
        return [path]
    stem, files_by_count = name.removesuffix(SUFFIX), dict[int, list[str]]()
    for file in storage.list_files(directory):
        match = _PART.fullmatch(file)
        if match and match[1] == stem:
            files_by_count.setdefault(int(match[3]), []).append(file)
    for count, files in files_by_count.items():
        if files == [part_name(name, number, count) for number in range(count)]:
            return [storage.join(directory, file) for file in files]
    details = (
        f" ({', '.join(file for files in files_by_count.values() for file in files)} alone)"
        if files_by_count
        else ""
    )
    raise DataError(f"{path} is missing{details}; use another checkpoint")


def copy_into(network: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy every tensor of the network's state from `tensors`, one at a time.

    Raises:
        DataError: a tensor is missing, or has another shape.
    """
    errors: list[str] = []
    for prefix, module in network.named_modules():
        copy_module_tensors(module, f"{prefix}." if prefix else "", tensors, errors)
    raise_mismatch(errors)


def raise_mismatch(errors: Sequence[str]) -> None:
    """Raise DataError if `errors` is not empty."""
    if errors:
        raise DataError(
            f"the checkpoint's weights are not those of the model ({errors[0].strip()}); use "
            f"another checkpoint"
        )


def copy_module_tensors(
    module: torch.nn.Module, prefix: str, tensors: Mapping[str, Tensor], errors: list[str]
) -> None:
    """Copy the module's own tensors, not those of its children; append mismatches to `errors`."""
    missing: list[str] = []
    module._load_from_state_dict(tensors, prefix, {}, True, missing, [], errors)
    errors += [f"{name} is missing" for name in missing]


def _check_whole(name: str, entry: _Entry, files: Sequence[str]) -> None:
    entry.pieces.sort(key=lambda piece: (piece.start, piece.stop))
    stops = [piece.stop for piece in entry.pieces]
    if [piece.start for piece in entry.pieces] != [0, *stops[:-1]] or stops[-1] != math.prod(
        entry.shape
    ):
        source = files[0] if len(files) == 1 else files[0].rpartition("/")[0]
        raise DataError(
            f"{source} lacks a part of {name}, or has one twice; use another checkpoint"
        )


def _bytes(tensor: Tensor) -> memoryview:
    """View the memory of a contiguous CPU tensor as bytes."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _fill(handle: IO[bytes], path: str, target: memoryview) -> None:
    while len(target):
        count = handle.readinto(target)  # type: ignore[attr-defined]
        if not count:
            raise DataError(f"{path} ends too early; use another checkpoint")
        target = target[count:]


def to_saved_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """Convert floating-point tensors to fp32, the dtype in checkpoints."""
    return tensor.float() if tensor.is_floating_point() else tensor
