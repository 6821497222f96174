"""Tensors that lie in several files, whole or in pieces, read one after another or a slice at a
time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cloze.core.errors import DataError
from cloze.model.tensors import (
    LazyTensors,
    TensorSlice,
    copy_into,
    part_name,
    to_saved_dtype,
    write_tensors,
)
from cloze.model.train.distributed import assign_owners
from cloze.model.train.engines.gradients import own_slices

STATE = {
    "table": torch.arange(35.0).view(7, 5),
    "scale": torch.tensor(2.5),
    "bias": torch.arange(3.0) - 8,
    "half": torch.arange(6, dtype=torch.bfloat16).view(3, 2),
}


def write(directory: Path, parts: int, state: dict[str, Tensor] = STATE) -> None:
    """As so many ranks would, each its share of the numbers."""
    for rank in range(parts):
        mine = list(own_slices(state.items(), rank, parts))
        shapes = {piece.name: piece.shape for piece in mine if not piece.whole}
        tensors = {
            piece.key: piece.values.view(piece.shape) if piece.whole else piece.values
            for piece in mine
        }
        write_tensors(str(directory / part_name("state.safetensors", rank, parts)), tensors, shapes)


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 50])
def test_what_was_cut_is_read_whole_and_by_slices(tmp_path: Path, parts: int) -> None:
    write(tmp_path, parts)
    found = LazyTensors.open(str(tmp_path), "state.safetensors")
    assert found.keys() == STATE.keys()
    for name, tensor in STATE.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert found[name].equal(tensor)
        for start in range(tensor.numel()):
            for stop in range(start, tensor.numel() + 1):
                assert found.slice(name, start, stop).equal(tensor.flatten()[start:stop])


def test_what_is_set_hides_the_files(tmp_path: Path) -> None:
    write(tmp_path, 3)
    found = LazyTensors.open(str(tmp_path), "state.safetensors")
    found["bias"] = torch.ones(2, 2)
    del found["half"]
    assert found["bias"].equal(torch.ones(2, 2))
    assert found.slice("bias", 1, 3).equal(torch.ones(2))
    assert sorted(found) == ["bias", "scale", "table"]
    found.clear()
    assert len(found) == 0


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write(tmp_path, 3)
    (tmp_path / "state-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        DataError, match=r"state\.safetensors is missing \(state-00001-of-00003.* alone\)"
    ):
        LazyTensors.open(str(tmp_path), "state.safetensors")
    with pytest.raises(DataError, match="lacks a part of table"):
        LazyTensors([str(tmp_path / "state-00001-of-00003.safetensors")])
    with pytest.raises(DataError, match="lacks a part of table, or has one twice"):
        LazyTensors([str(tmp_path / "state-00001-of-00003.safetensors")] * 2)


@pytest.mark.parametrize(
    "content",
    [b"", b"12345678", (1 << 40).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]"],
)
def test_what_is_none_of_ours_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="is no safetensors file or is damaged"):
        LazyTensors([str(tmp_path / "x.safetensors")])


def test_a_file_that_was_cut_off_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, 1)
    file = tmp_path / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="lies outside of it"):
        LazyTensors([str(file)])


def test_shares_are_even_and_nothing_is_left_out() -> None:
    sizes = {f"layer.{number}": 100 + number for number in range(40)} | {"table": 900}
    owner = assign_owners(sizes, 4)
    loads = [sum(size for name, size in sizes.items() if owner[name] == rank) for rank in range(4)]
    assert max(loads) - min(loads) < 150
    total = sum(tensor.numel() for tensor in STATE.values())
    counts = [
        sum(piece.values.numel() for piece in own_slices(STATE.items(), rank, 4))
        for rank in range(4)
    ]
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1
    assert TensorSlice("a", (2, 3), 0, torch.zeros(6)).key == "a"
    assert TensorSlice("a", (2, 3), 2, torch.zeros(3)).key == "a[2:5]"


def test_a_file_that_shrinks_while_it_is_open_ends_too_early(tmp_path: Path) -> None:
    """Of more than what was read of it at once."""
    file = tmp_path / "state.safetensors"
    write(tmp_path, 1, {"large": torch.zeros(100_000)})
    with LazyTensors([str(file)]) as found:
        with file.open("r+b") as stream:
            stream.truncate(file.stat().st_size - 100)
        with pytest.raises(DataError) as caught:
            found["large"]
    assert str(caught.value) == f"{file} ends too early; use another checkpoint"


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "x.pt", "x.pth", "x.ckpt"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(DataError, match=rf"{name} is "):
            LazyTensors([str(tmp_path / name)])


def test_weights_that_are_not_the_models_are_named(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    state = {name: tensor + 1.0 for name, tensor in network.state_dict().items()}
    copy_into(network, state)
    assert all(tensor.equal(state[name]) for name, tensor in network.state_dict().items())
    lacking = {name: tensor for name, tensor in state.items() if name != "1.bias"}
    wrong = {**state, "0.weight": torch.zeros(2, 2)}
    for given, fault in ((lacking, "1.bias is missing"), (wrong, "size mismatch for 0.weight")):
        with pytest.raises(DataError, match=rf"are not those of the model \({fault}"):
            copy_into(network, given)
    found = to_saved_dtype(torch.ones(2, dtype=torch.bfloat16))
    assert (found.dtype, to_saved_dtype(torch.ones(2, dtype=torch.int64)).dtype) == (
        torch.float32, torch.int64
    )  # fmt: skip


def test_a_gap_or_a_wrong_whole_is_no_tensor(tmp_path: Path) -> None:
    for pieces in ({"a[0:2]": (2,)}, {"a[2:6]": (4,)}, {"a[0:3]": (3,), "a[2:6]": (4,)}):
        tensors = {name: torch.zeros(size) for name, size in pieces.items()}
        write_tensors(str(tmp_path / "x.safetensors"), tensors, {"a": (2, 3)})
        with pytest.raises(DataError, match=r"x\.safetensors lacks a part of a, or has one twice"):
            LazyTensors([str(tmp_path / "x.safetensors")])
