"""The files of a Hugging Face directory: its weights, of one file or several, and its config."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.model.checkpoint import CONFIG, WEIGHTS, check_finite
from cloze.model.tensors import read_tensors

read_json = partial(storage.read_json, expected="use a complete Hugging Face directory")
PICKLE = "pytorch_model.bin"  # name in transformers before safetensors
# Files of directories that hold a model elsewhere -> what to do.
INSTEAD = {
    "adapter_config.json": "it is an adapter; merge it into its base model, by merge_and_unload of "
    "peft, and save that",
    "modules.json": "name the folder of its transformer, such as 0_Transformer",
}


def read_weights(directory: str, trust_pickle: bool) -> dict[str, Tensor]:
    """Return the tensors of a directory under the names in its files.

    Raises:
        DataError: a file is missing, damaged or a pickle, or a value is not finite.
    """
    files, read = _weight_files(directory, WEIGHTS), read_tensors
    if not files:
        files, read = _weight_files(directory, PICKLE), _read_pickle
        if not files:
            raise DataError(f"{directory} has no {WEIGHTS}; use a complete Hugging Face directory")
        if not trust_pickle:
            raise DataError(
                f"{files[0]} is a pickle, which can run code when it is read; convert it to "
                f"safetensors where it comes from, or use --trust-pickle, which reads only tensors"
            )
    weights = {name: tensor for file in files for name, tensor in read(file).items()}
    check_finite(weights, directory)
    return weights


def _weight_files(directory: str, name: str) -> list[str]:
    """Return the paths of the weights saved as `name`: one file, or those that its index lists.

    Raises:
        DataError: the index names no files, or files outside the directory.
    """
    single, index = storage.join(directory, name), storage.join(directory, name + ".index.json")
    if storage.exists(single):
        return [single]
    if not storage.exists(index):
        return []
    weight_map = read_json(index).get("weight_map")
    files = sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) else []
    invalid = [file for file in files if "/" in file or "\\" in file]
    if invalid or not files:
        raise DataError(
            f"{index} names {invalid[0] if invalid else 'no files'}; it must name files in its "
            f"directory"
        )
    return [storage.join(directory, file) for file in files]


def _read_pickle(path: str) -> dict[str, Tensor]:
    """Read tensors from a pickle with torch's restricted reader, which runs no code."""
    try:
        with storage.open_input(path) as handle:
            content = torch.load(io.BytesIO(handle.read()), map_location="cpu", weights_only=True)
    except Exception as error:  # the restricted reader raises many types
        raise DataError(
            f"{path} contains more than tensors, or is damaged ({type(error).__name__}); use "
            f"safetensors"
        ) from error
    if not isinstance(content, dict) or not all(
        isinstance(tensor, Tensor) for tensor in content.values()
    ):
        raise DataError(f"{path} is no table of tensors; use the model's weights file")
    return content


def read_config(directory: str) -> dict[str, Any]:
    """Return the content of config.json.

    Raises:
        DataError: there is none, or the weights are no numbers of one model.
    """
    path = storage.join(directory, CONFIG)
    if not storage.exists(path):
        for name, remedy in INSTEAD.items():
            if storage.exists(storage.join(directory, name)):
                raise DataError(f"{directory} has {name} and no {CONFIG}: {remedy}")
    config = read_json(path)
    if config.get("quantization_config"):
        raise DataError(
            f"{path} has a quantization_config, so its weights are no plain numbers; use the model "
            f"from which it was made"
        )
    return config
