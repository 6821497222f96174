"""An ONNX file of an export computes our logits on ragged batches, which the export checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.model.families.hub_formats import exportable
from cloze.model.families.registry import config_class
from cloze.model.hub.stages import EXPORT, ExportConfig
from tests.parity.families import transformers
from tests.parity.pretrained import write_pretrained
from tests.parity.test_task_exports import HEADS, PAIRS, fine_tuned, network
from tests.parity.test_task_exports import REFUSED as REFUSED_HEADS
from tests.slices import few

REFUSED = "longformer"  # cuts its rows into as many pieces as they need


def traced(family: str) -> bool:
    """Whether an ONNX file is made of such models; encoder-decoders and XLNet are refused."""
    return config_class(family).supports_onnx


TUNED = [
    pair for pair in PAIRS if pair not in REFUSED_HEADS and REFUSED not in pair and traced(pair[0])
]
TEXTS = ["the cat sat", "a dog ran in the park and sat on the mat in paris", "cat"]


def export(path: str, out: Path, **options: Any) -> dict[str, Any]:
    for library in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(library, reason=f"needs {library} ([onnx])")
    config = ExportConfig(format="onnx", **options)
    return execute(EXPORT, config, {"checkpoint": path}, str(out)).manifest.summary


def pretrained(tmp_path: Path, family: str) -> str:
    # Longer than the rows that are traced. A layer takes a second; ModernBERT's first two differ.
    layers = 2 if family == "modern" else 1
    return write_pretrained(
        tmp_path / "checkpoint",
        family,
        "wordpiece",
        max_position_embeddings=384,
        num_hidden_layers=layers,
    )


def session_of(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "family",
    few([name for name in exportable() if name != REFUSED and traced(name)], "electra"),
)
def test_every_family(family: str, tmp_path: Path) -> None:
    files = export(pretrained(tmp_path, family), tmp_path / "hub", int8=True)["onnx"]
    for name, limit in (("onnx/model.onnx", 1e-5), ("onnx/model_int8.onnx", 0.3)):
        assert 0 < files[name]["relative_logit_difference"] < limit
        assert files[name]["bytes"] == (tmp_path / "hub" / name).stat().st_size
    settings = json.loads((tmp_path / "hub" / "tokenizer_config.json").read_text())
    session = session_of(tmp_path / "hub" / "onnx" / "model.onnx")
    assert {value.name for value in session.get_inputs()} == set(settings["model_input_names"])
    content = (tmp_path / "hub" / "onnx" / "model.onnx").read_bytes()  # nor this machine's paths
    assert not [word for word in (b"site-packages", b"modeling_") if word in content]


@pytest.mark.parametrize(
    ("family", "kind"),
    few([pytest.param(*pair, id="-".join(pair)) for pair in TUNED], "bert-choice"),
)
@pytest.mark.soak
def test_every_head(family: str, kind: str, tmp_path: Path) -> None:
    export(fine_tuned(network(family, kind), family, kind, tmp_path), tmp_path / "hub", int8=True)
    for name in ("model.onnx", "model_int8.onnx"):
        outputs = [o.name for o in session_of(tmp_path / "hub" / "onnx" / name).get_outputs()]
        assert outputs == (["start_logits", "end_logits"] if kind == "span" else ["logits"])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("form", "outputs"),
    [
        ("pretraining", ["prediction_logits", "seq_relationship_logits"]),
        ("encoder", ["last_hidden_state"]),
        ("sentence-transformers", ["last_hidden_state"]),
    ],
)
def test_every_form(form: str, outputs: list[str], tmp_path: Path) -> None:
    export(pretrained(tmp_path, "bert"), tmp_path / "hub", export_as=form)
    session = session_of(tmp_path / "hub" / "onnx" / "model.onnx")
    assert [output.name for output in session.get_outputs()] == outputs


@pytest.mark.parametrize(
    "problem", few([None, "multi_label_classification"], "multi_label_classification")
)
@pytest.mark.soak
def test_onnxruntime_answers_texts_as_the_checkpoint_does(
    problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of every size, each padded to its longest text."""
    head, outputs, meaning, auto = HEADS["labels"]
    meaning = {**meaning, **({"name": "multilabel", "problem_type": problem} if problem else {})}
    monkeypatch.setitem(HEADS, "labels", (head, outputs, meaning, auto))
    path = fine_tuned(network("bert", "labels"), "bert", "labels", tmp_path)
    export(path, tmp_path / "hub")
    pieces = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hub"))
    session = session_of(tmp_path / "hub" / "onnx" / "model.onnx")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "hub"))
    assert model.config.problem_type == problem
    for texts in (TEXTS, TEXTS[:1], TEXTS[:2], TEXTS[2:]):
        batch = pieces(texts, padding=True, return_tensors="pt")
        with torch.inference_mode():
            expected = model(**batch).logits
        arrays = {name: tensor.numpy() for name, tensor in batch.items()}
        (logits,) = session.run(["logits"], arrays)
        assert logits == pytest.approx(expected.numpy(), abs=1e-5)


@pytest.mark.soak
def test_weights_too_large_for_one_file_are_in_a_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.labs.exports.onnx.PROTOBUF", 0)
    files = export(pretrained(tmp_path, "bert"), tmp_path / "hub", int8=True)["onnx"]
    for name, figures in files.items():
        parts = [tmp_path / "hub" / name, tmp_path / "hub" / f"{name}.data"]
        assert figures["bytes"] == sum(part.stat().st_size for part in parts)


def test_a_family_that_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot export LongformerForMaskedLM .* leave --format"):
        export(pretrained(tmp_path, REFUSED), tmp_path / "hub")


@pytest.mark.parametrize("values", [{"int8": True}, {"format": "onnx", "export_as": "croissant"}])
def test_options_that_do_not_fit(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="onnx"):
        ExportConfig.model_validate(values)
