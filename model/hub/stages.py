"""The stages export and import: a checkpoint to a Hugging Face directory, and back.

Export checks that logits are equal and writes `config.json`, `model.safetensors`, tokenizer files
and `README.md` (a model card). transformers' `AutoTokenizer` opens the directory, and
`AutoModelForPreTraining`, `...MaskedLM`, `...SequenceClassification`, `...QuestionAnswering`,
`...TokenClassification` or `...MultipleChoice`. Pretraining, fine-tuning and distillation can start
from an imported checkpoint.

The command line imports this module; torch is imported when a stage runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core.stages.stage import CHECKPOINT, BuildContext, InputSpec, Stage, StageResult
from cloze.model.hub.config import FORMS, ExportConfig, ImportConfig

SHOWN = 4  # parameters that the last line names


def _export(config: ExportConfig, build: BuildContext) -> StageResult:
    form = FORMS.get(config.export_as or "")
    if form is not None and form.export is not None:
        return form.export(build)
    from cloze.model.hub.write import export

    return export(build, config)


def _import(config: ImportConfig, build: BuildContext) -> StageResult:
    """Import a directory; see `cloze.model.hub.read.import_directory`.

    Returns:
        summary: `checkpoint`; `family`; `parameters`; `initialized`, heads that the directory
            lacks; `left_out`, parameters that the family does not use; `max_logit_difference` of
            the outputs `compared` with transformers, None with the reason `not_compared`.

    Raises:
        ClozeError: the logits are not those of transformers.
    """
    from cloze.model import checkpoint
    from cloze.model.hub.parity import compare_with_transformers, not_compared
    from cloze.model.hub.read import import_directory

    source = build.inputs["directory"]
    imported = import_directory(
        source,
        build.file(CHECKPOINT),
        family=config.family,
        positions=config.positions,
        trust_pickle=config.trust_pickle,
    )
    difference, reason = None, "the model has new positions"
    if config.positions is None:
        reason = not_compared(source)
        difference = compare_with_transformers(checkpoint.load(build.file(CHECKPOINT)), source)
        if difference is None and not reason:
            reason = "transformers makes a part of this encoder anew"
    summary = {
        "checkpoint": CHECKPOINT,
        "family": imported.model.family,
        "parameters": sum(tensor.numel() for tensor in imported.state.values()),
        "initialized": list(imported.untrained),
        "left_out": list(imported.left_out),
        "max_logit_difference": None if difference is None else difference.absolute,
        "compared": [] if difference is None else list(difference.compared),
        "not_compared": reason,
    }
    return StageResult(summary=summary)


def _headline(summary: Mapping[str, Any]) -> str:
    """Return how far the logits are from transformers', or why that is not known, and what is new
    or left out.
    """
    difference, reason = summary.get("max_logit_difference"), summary.get("not_compared")
    parts = [f"logits not compared: {reason}"] if reason else []
    if difference is not None:
        names = [name.removesuffix("_logits") for name in summary.get("compared", ())]
        parts = [f"logits within {difference:.0e} of transformers' ({', '.join(sorted(names))})"]
    if new := summary.get("initialized"):
        parts.append(f"new, with random weights: {', '.join(new)}")
    if left := summary.get("left_out"):
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        parts.append(f"left out: {', '.join(left[:SHOWN])}{more}")
    return "; ".join(parts)


EXPORT = Stage(
    name="export",
    version=4,  # 3: cards with text, training, scores; 4: heads never trained are left out
    config=ExportConfig,
    run=_export,
    inputs={"checkpoint": InputSpec(required=True)},
    unhashed_files=("README.md", "*/README.md", "croissant.json"),
    worker="cloze.model",
    headline=_headline,
)
IMPORT = Stage(
    name="import",
    version=2,  # 2: heads that are new are named; labels without B- join
    config=ImportConfig,
    run=_import,
    inputs={"directory": InputSpec(required=True)},
    worker="cloze.model",
    outputs=("checkpoint",),
    headline=_headline,
)
