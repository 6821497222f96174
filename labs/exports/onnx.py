"""ONNX form of an exported directory: `onnx/model.onnx`, and `onnx/model_int8.onnx` in int8.

torch's exporter traces transformers' model of the directory, not Cloze's: its inputs and outputs
have the names that readers of ONNX files expect, and its code has no kernels of its own. Every
class has plain attention ("eager").

onnxruntime then runs the file on ragged batches, and the logits are compared with the checkpoint's.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.errors import ClozeError, DataError, UsageError, require_packages
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.hub import parity
from cloze.model.hub.config import ExportConfig, ExportForm

FOLDER, FP32, INT8 = "onnx", "model.onnx", "model_int8.onnx"
# Relative to the largest logit: onnxruntime sums in another order than torch.
TOLERANCE = 1e-4
# Lengths of the compared batches: as traced, one short row, another shape, and rows that are longer
# than traced, attention windows and buckets of positions; limited to the model's maximum.
BATCHES = (parity.LENGTHS, (5,), (33, 9), (300, 150))
# Outputs that a file may have; the others, such as poolers, have no exported weights.
OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state")
AXES = {2: ("batch", "length"), 3: ("batch", "choices", "length")}  # by the rank of input_ids
PROTOBUF = 1_900_000_000  # bytes of weights, above which they are in a file of their own


def check(checkpoint: LoadedCheckpoint, directory: str) -> None:
    """Raise UsageError for a model or a directory that is not for ONNX."""
    if not checkpoint.model.supports_onnx:
        raise UsageError(
            f"--format onnx is for encoders or decoders alone, of one attention stream (this is a "
            f"{checkpoint.model.family} model); leave it out"
        )
    require_packages("transformers", "onnx", "onnxruntime", "onnxscript")
    if not storage.is_local(directory):
        raise UsageError(f"--format onnx needs a local directory ({directory} is not one)")


def export_onnx(
    loaded: LoadedCheckpoint, directory: str, architecture: str, config: ExportConfig
) -> dict[str, Any]:
    """Write the ONNX form of an exported directory.

    Args:
        loaded: the checkpoint that `directory` was written from.
        directory: a local directory, as `write_directory` writes it.
        architecture: class of transformers, as in config.json.
        config: with `int8` also write `onnx/model_int8.onnx`, quantized by onnxruntime: the weights
            of matrix products in int8 (7 bits), one scale per output channel, and activations in
            uint8 with a scale that is computed at run time.

    Returns:
        By file name: `bytes`, and `max_logit_difference` and `relative_logit_difference` from the
        checkpoint's logits. The int8 file has no maximum that it must keep.

    Raises:
        DataError: torch cannot export a model of this family.
        ClozeError: the file computes other logits.
    """
    path = storage.join(directory, FOLDER, FP32)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    trace(loaded, directory, architecture, path)
    difference = compare(loaded, path)
    if not difference.relative <= TOLERANCE:
        raise ClozeError(
            f"{path} gives logits that differ by {difference.absolute:.2e} from the checkpoint's; "
            f"please report this"
        )
    summary = {f"{FOLDER}/{FP32}": _file_summary(path, difference)}
    if config.int8:
        quantized = storage.join(directory, FOLDER, INT8)
        quantize(path, quantized)
        summary[f"{FOLDER}/{INT8}"] = _file_summary(quantized, compare(loaded, quantized))
    return summary


class _Positional(nn.Module):
    """transformers' model with positional inputs and a tuple of selected outputs."""

    def __init__(self, model: nn.Module, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs = model, tuple(inputs), tuple(outputs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(**dict(zip(self.inputs, tensors, strict=True)))
        return tuple(outputs[name] for name in self.outputs)


def trace(loaded: LoadedCheckpoint, directory: str, architecture: str, path: str) -> None:
    """Write transformers' model of a directory as an ONNX file with dynamic batch and length.

    Raises:
        DataError: torch's exporter cannot trace the model.
    """
    model, _ = parity.hub_model(directory, architecture, attn_implementation="eager")
    model.config.use_cache = False  # past keys are no outputs
    inputs = parity.hub_inputs(loaded, parity.probe(loaded))
    # torch.export makes dimensions of size 1 constants.
    inputs = {name: tensor.repeat_interleave(2, dim=0) for name, tensor in inputs.items()}
    with torch.no_grad():
        computed = model(**inputs)
    names = dict.fromkeys([*parity.output_names(loaded.heads), *OUTPUTS])
    outputs = [name for name in names if name in computed]
    rank = inputs["input_ids"].ndim
    shape = {axis: torch.export.Dim(name) for axis, name in enumerate(AXES[rank])}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the exporter's own code
            program = torch.onnx.export(
                _Positional(model, list(inputs), outputs).eval(),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=outputs,
                dynamic_shapes=(tuple(shape for _ in inputs),),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise DataError(
            f"torch cannot export {architecture} ({loaded.model.family}) to ONNX; leave --format "
            f"out, or export a model of another family"
        ) from error
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces with this machine's paths
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    program.save(path, external_data=size > PROTOBUF)


def quantize(path: str, target: str) -> None:
    """Write an ONNX file with int8 weights, by onnxruntime's dynamic quantization."""
    from onnxruntime.quantization import QuantType, quant_pre_process, quantize_dynamic

    external = os.path.exists(f"{path}.data")
    with tempfile.TemporaryDirectory() as scratch:
        # Folds the transposes of weights: only constants are quantized.
        folded = os.path.join(scratch, FP32)
        quant_pre_process(path, folded, skip_symbolic_shape=True, save_as_external_data=external)
        quantize_dynamic(
            folded,
            target,
            per_channel=True,
            # Weights of 7 bits: without VNNI a CPU adds two products in 16 bits, which overflow.
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=external,
        )


def compare(loaded: LoadedCheckpoint, path: str) -> parity.Difference:
    """Compare an ONNX file's logits with those of `loaded`, over `BATCHES`, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    differences = []
    for lengths in BATCHES:
        batch = parity.probe(loaded, lengths)
        inputs = parity.hub_inputs(loaded, batch)
        arrays = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        outputs = {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}
        logits = parity.named_logits(outputs, batch, loaded.heads)
        differences.append(parity.largest_difference(parity.our_logits(loaded, batch), logits))
    return max(differences, key=lambda difference: difference.relative)


def _file_summary(path: str, difference: parity.Difference) -> dict[str, Any]:
    files = [name for name in (path, f"{path}.data") if os.path.exists(name)]
    return {
        "bytes": sum(os.path.getsize(name) for name in files),
        "max_logit_difference": difference.absolute,
        "relative_logit_difference": difference.relative,
    }


FORM = ExportForm(check=check, add=export_onnx)
