"""Configs of the stages export and import, and the table of further forms of an export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cloze.core.config import NoFingerprint, StageConfig
from cloze.core.options import known
from cloze.core.plugins import Table
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model.families.registry import FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportForm:
    """A form of an export beside Hugging Face's weights, which `format` or `export_as` names.

    Attributes:
        export: exports an input that is no checkpoint; None: the form adds to a checkpoint's.
        check: (checkpoint, directory) -> None; raises before anything is written.
        add: (checkpoint, written directory, class of transformers, config) -> part of the summary.
    """

    export: Callable[[BuildContext], StageResult] | None = None
    check: Callable[[Any, str], None] = lambda checkpoint, directory: None
    add: Callable[[Any, str, str, ExportConfig], dict[str, Any]] | None = None


FORMS: Table[ExportForm] = Table("export_forms", "form of an export", {}, ("format", "export_as"))


class ExportConfig(StageConfig):
    """Options of the stage export; the checkpoint has all other settings."""

    export_as: (
        Literal["masked-lm", "pretraining", "encoder", "sentence-transformers", "croissant"] | None
    ) = None
    """Form of the export: masked LM (a SPLADE in SparseEncoder), pretraining class, encoder alone,
    with mean pooling, or data with Croissant metadata. Default: the class of the checkpoint's
    heads."""

    revisions: bool = False
    """Also export the milestones of a pretraining, one directory each below revisions/: of all its
    phases, or those of a merge's pretraining."""

    format: Literal["safetensors", "onnx"] = "safetensors"
    """Format of the weights; onnx adds an ONNX file to safetensors, checked by onnxruntime."""

    int8: bool = False
    """Also write an ONNX file with int8 weights, for CPUs; needs --format onnx."""

    @model_validator(mode="after")
    def _onnx_of_a_model(self) -> ExportConfig:
        if self.int8 and self.format != "onnx":
            raise ValueError("int8 is for onnx; add --format onnx")
        if self.format == "onnx" and self.export_as == "croissant":
            raise ValueError("format onnx is for checkpoints, --as croissant for data; use one")
        return self


class ImportConfig(StageConfig):
    """Options of the stage import."""

    family: Annotated[str, known(FAMILIES, "there is no such model family")] | None = None
    """Model family to convert to. Default: that of the directory's model_type."""

    positions: int | None = Field(default=None, ge=1)
    """Maximum row length of the imported model, if the family supports longer rows."""

    trust_pickle: bool = False
    """Read weights from a pickle file if there are no others; only tensors are loaded, no code is
    run."""

    repository: NoFingerprint[str] = ""
    """Repository and commit that the directory comes from, for the manifest."""
