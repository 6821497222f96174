"""Libraries that build on transformers open an export unchanged, and compute our numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cloze
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import execute
from cloze.labs.seq2seq.generate import TextGenerationPipeline
from cloze.model import checkpoint
from cloze.model.families.hub_format import EMBEDDING
from cloze.model.families.hub_formats import exportable, hub_of
from cloze.model.hub.parity import STATES, our_logits
from cloze.model.hub.stages import EXPORT, IMPORT, ExportConfig, ImportConfig
from cloze.pipeline import tokenizer
from tests.labs.test_embed import TEXTS
from tests.parity.pretrained import write_pretrained
from tests.tiny_models import write_classifier

transformers = pytest.importorskip("transformers", reason="needs transformers ([handover])")
PAIR = ("the cat sat on the mat", "a dog ran in the park")
CLOSE = {"abs": 1e-5, "rel": 1e-5}
# A masked LM that transformers has; electra's discriminator and left-to-right models have none.
MASKED = [name for name in exportable() if name not in ("electra", "gpt2", "ltr", "xlnet")]
ENCODERS = [name for name in exportable() if hub_of(name).architectures.get(frozenset({EMBEDDING}))]


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"needs {name} (pip install '.[handover]')")


def export(checkpoint_path: str, out: Path, export_as: Any = None) -> dict[str, Any]:
    config = ExportConfig(export_as=export_as)
    return execute(EXPORT, config, {"checkpoint": checkpoint_path}, str(out)).manifest.summary


def pretrained(tmp_path: Path, family: str, **changes: Any) -> str:
    # roberta and longformer with a WordPiece vocabulary have one token type, and the tokenizer two
    changes = {"max_position_embeddings": 64, **changes}
    return write_pretrained(tmp_path / "checkpoint", family, "wordpiece", **changes)


@pytest.mark.parametrize("family", MASKED)
def test_sparse_encoder_is_a_splade(family: str, tmp_path: Path) -> None:
    sparse = library("sentence_transformers").SparseEncoder
    path, hub = pretrained(tmp_path, family), tmp_path / "hub"
    export(path, hub)
    model = sparse(str(hub), device="cpu")
    assert type(model[1]).__name__ == "SpladePooling"
    found = model.encode(TEXTS[:1], convert_to_tensor=True).to_dense()[0]
    loaded = checkpoint.load(path)
    pieces = tokenizer.load(loaded.tokenizer)
    ids = [pieces.special.cls, *pieces.encode_batch(TEXTS[:1])[0], pieces.special.sep]
    batch = {
        "input_ids": torch.tensor([ids]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.bool),
        "token_type_ids": torch.zeros(1, len(ids), dtype=torch.long),
        "masked_positions": torch.arange(len(ids)),
    }
    logits = our_logits(loaded, batch)["mlm_logits"]
    expected = torch.log1p(torch.relu(logits)).amax(0)
    assert found.numpy() == pytest.approx(expected.numpy(), **CLOSE)


@pytest.mark.parametrize("family", ENCODERS)
def test_sentence_transformer_and_multi_vector_encoder(family: str, tmp_path: Path) -> None:
    sentence_transformers = library("sentence_transformers")
    path, hub, whole = pretrained(tmp_path, family), tmp_path / "hub", tmp_path / "whole"
    export(path, hub, "sentence-transformers")
    expected = cloze.load(path).embed(TEXTS)
    found = sentence_transformers.SentenceTransformer(str(hub), device="cpu").encode(TEXTS)
    assert found == pytest.approx(expected, **CLOSE)
    export(path, whole)  # a plain directory has mean pooling, too
    model = sentence_transformers.SentenceTransformer(str(whole), device="cpu")
    assert model.encode(TEXTS) == pytest.approx(expected, **CLOSE)
    late = sentence_transformers.MultiVectorEncoder(str(whole), device="cpu")
    (vectors,) = late.encode_document(TEXTS[:1])
    assert np.linalg.norm(vectors, axis=-1) == pytest.approx(1, abs=1e-4)


def test_cross_encoder_gives_our_scores(tmp_path: Path) -> None:
    cross_encoder = library("sentence_transformers").CrossEncoder
    path = write_classifier(tmp_path / "checkpoint", tmp_path / "scratch")
    export(path, tmp_path / "hub")
    found = cross_encoder(str(tmp_path / "hub"), device="cpu").predict(
        [PAIR, PAIR[::-1]], apply_softmax=True
    )
    loaded = checkpoint.load(path)
    pieces = tokenizer.load(loaded.tokenizer)
    for (first, second), scores in zip((PAIR, PAIR[::-1]), found, strict=True):
        a, b = pieces.encode_batch([first, second])
        cls, sep = pieces.special.cls, pieces.special.sep
        ids = [cls, *a, sep, *b, sep]
        types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        batch = {
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.bool),
            "token_type_ids": torch.tensor([types]),
            "masked_positions": torch.arange(len(ids)),
        }
        (logits,) = (value for name, value in our_logits(loaded, batch).items() if name != STATES)
        assert scores == pytest.approx(logits.softmax(-1)[0].numpy(), **CLOSE)


@pytest.mark.parametrize("family", ["roberta", "longformer"])
def test_a_pair_fits_models_of_one_token_type(family: str, tmp_path: Path) -> None:
    path, hub = pretrained(tmp_path, family), tmp_path / "hub"
    export(path, hub)  # compares a pair
    pair = transformers.AutoTokenizer.from_pretrained(str(hub))(*PAIR, return_tensors="pt")
    assert "token_type_ids" not in pair
    model = transformers.AutoModelForMaskedLM.from_pretrained(str(hub))
    assert torch.isfinite(model(**pair).logits).all()


@pytest.mark.parametrize("family", ["bert", "modern", "deberta"])
def test_gliner_takes_an_encoder(family: str, tmp_path: Path) -> None:
    encoders = library("gliner.modeling.encoder")
    configs = library("gliner.config")
    path, hub = pretrained(tmp_path, family), tmp_path / "hub"
    export(path, hub, "encoder")
    config = configs.GLiNERConfig(model_name=str(hub), hidden_size=16, fine_tune=True)
    encoder = encoders.Transformer(str(hub), config, from_pretrained=True)
    ours = checkpoint.load(path).state["encoder.embeddings.word.weight"]
    assert encoder.model.get_input_embeddings().weight.equal(ours)


def test_setfit_learns_on_our_embeddings(tmp_path: Path) -> None:
    setfit = library("setfit").SetFitModel
    path, hub = pretrained(tmp_path, "bert"), tmp_path / "hub"
    export(path, hub, "sentence-transformers")
    model = setfit.from_pretrained(str(hub), device="cpu")
    expected = cloze.load(path).embed(TEXTS)
    assert model.model_body.encode(TEXTS) == pytest.approx(expected, **CLOSE)
    labels = [number % 2 for number in range(len(TEXTS))]
    model.model_head.fit(expected, labels)
    assert model.predict_proba(TEXTS).shape == (len(TEXTS), 2)


def test_pylate_takes_an_encoder(tmp_path: Path) -> None:
    models = library("pylate.models")
    if library("sentence_transformers").__version__ >= "6":
        pytest.skip("PyLate 1.6 needs sentence-transformers 5.3")
    path, hub = pretrained(tmp_path, "modern"), tmp_path / "hub"
    export(path, hub)
    model = models.ColBERT(str(hub), embedding_size=8, device="cpu")
    (vectors,) = model.encode(TEXTS[:1], is_query=False)
    assert vectors.shape[1] == 8
    ours = checkpoint.load(path).state["encoder.embeddings.word.weight"]
    found = model[0].auto_model.get_input_embeddings().weight  # PyLate adds two tokens
    assert found[: len(ours)].equal(ours)


def test_a_model_that_reads_from_left_to_right_is_a_decoder(tmp_path: Path) -> None:
    """Its window, of which rows of 64 tokens see the edge, and its generation are those of
    transformers' class; other families have none.
    """
    heads, window = {"masked_lm": {"objectives": ["clm", "mntp"]}}, {"local_attention": 8}
    paths = {
        family: pretrained(tmp_path / family, family, heads=heads, **changes)
        for family, changes in (("modern", window), ("bert", {}))
    }
    hub, back = tmp_path / "hub", tmp_path / "back"
    summary = export(paths["modern"], hub)
    assert summary["architecture"] == "ModernBertDecoderForCausalLM"
    assert summary["max_logit_difference"] < 1e-5
    model = transformers.AutoModelForCausalLM.from_pretrained(str(hub)).eval()
    pieces = transformers.AutoTokenizer.from_pretrained(str(hub))
    question = pieces("the cat sat", return_tensors="pt").input_ids[:, :-1]
    written = model.generate(question, max_new_tokens=6, do_sample=False)[0, question.shape[1] :]
    assert model.generation_config.eos_token_id == pieces.sep_token_id
    ((ours,),) = TextGenerationPipeline(paths["modern"]).generate(["the cat sat"], tokens=6)
    assert written[: len(ours.ids)].tolist() == list(ours.ids)
    execute(IMPORT, ImportConfig(), {"directory": str(hub)}, str(back))
    again, first = checkpoint.load(str(back)), checkpoint.load(paths["modern"])
    assert (again.model, again.heads["masked_lm"]) == (first.model, {"objectives": ["clm"]})
    assert all(again.state[name].equal(tensor) for name, tensor in first.state.items())
    with pytest.raises(DataError, match="predicts each token at the position before it"):
        export(paths["bert"], tmp_path / "none")
    with pytest.raises(UsageError, match="--as masked-lm needs other heads"):
        export(paths["modern"], tmp_path / "none", "masked-lm")


NAMES = {
    None: "BertForMaskedLM",
    "masked-lm": "BertForMaskedLM",
    "pretraining": "BertForPreTraining",
    "encoder": "BertModel",
    "sentence-transformers": "BertModel",
}


@pytest.mark.parametrize("export_as", NAMES)
def test_forms_of_a_pretrained_bert(export_as: Any, tmp_path: Path) -> None:
    path, hub = pretrained(tmp_path, "bert"), tmp_path / "hub"
    assert export(path, hub, export_as)["architecture"] == NAMES[export_as]
    model, info = transformers.AutoModelForPreTraining.from_pretrained(
        str(hub), output_loading_info=True
    )
    # the pair head is kept wherever the masked LM is
    assert ("cls.seq_relationship.weight" in info["missing_keys"]) == ("Model" in NAMES[export_as])
    assert (hub / "modules.json").exists() == (export_as == "sentence-transformers")
    assert type(model).__name__ == "BertForPreTraining"


def test_forms_that_a_checkpoint_cannot_have(tmp_path: Path) -> None:
    electra = pretrained(tmp_path, "electra")
    assert export(electra, tmp_path / "hub", "pretraining")["architecture"].endswith(
        "ForPreTraining"
    )
    with pytest.raises(UsageError, match=r"--as masked-lm needs other heads .*discriminator"):
        export(electra, tmp_path / "none", "masked-lm")
    classifier = write_classifier(tmp_path / "c", tmp_path / "scratch")
    with pytest.raises(UsageError, match="classifier: BertForSequenceClassification"):
        export(classifier, tmp_path / "none", "pretraining")
    assert export(classifier, tmp_path / "encoder", "encoder")["architecture"] == "BertModel"
    assert "cloze_task" not in json.loads((tmp_path / "encoder" / "config.json").read_text())
