"""An exported encoder of vectors: what its files say, read as sentence-transformers reads them,
gives our vectors.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.labs.embed import EmbeddingPipeline
from cloze.model import checkpoint
from cloze.model.hub.write import write_directory
from tests.labs.test_embed import TEXTS, write_tuned

VARIANTS = [("mean", True), ("mean", False), ("first", True)]


@pytest.mark.parametrize(("pooling", "normalize"), VARIANTS)
def test_what_the_files_say_gives_our_vectors(
    pooling: str, normalize: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    path, directory = write_tuned(tmp_path, pooling=pooling, normalize=normalize), tmp_path / "hub"
    write_directory(checkpoint.load(path), str(directory))

    def said(name: str) -> dict[str, object]:
        content: dict[str, object] = json.loads((directory / name).read_text())
        return content

    modules = json.loads((directory / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ][: 2 + normalize]
    assert [module["path"] for module in modules][:2] == ["", "1_Pooling"]
    modes = [
        name
        for name, value in said("1_Pooling/config.json").items()
        if name.startswith("pooling_mode") and value
    ]
    assert modes == [
        {"mean": "pooling_mode_mean_tokens", "first": "pooling_mode_cls_token"}[pooling]
    ]
    assert said("1_Pooling/config.json")["word_embedding_dimension"] == 16
    assert said("config_sentence_transformers.json")["similarity_fn_name"] == (
        "cosine" if normalize else "dot"
    )

    pieces = transformers.AutoTokenizer.from_pretrained(directory)
    longest = said("sentence_bert_config.json")["max_seq_length"]
    batch = pieces(TEXTS, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.inference_mode():
        hidden = transformers.AutoModel.from_pretrained(directory).eval()(**batch).last_hidden_state
    real = batch["attention_mask"][:, :, None].float()
    vectors = hidden[:, 0] if pooling == "first" else (hidden * real).sum(1) / real.sum(1)
    vectors = torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors
    assert EmbeddingPipeline(path).embed(TEXTS) == pytest.approx(vectors.numpy(), abs=1e-5)


@pytest.mark.parametrize(("pooling", "normalize"), VARIANTS)
def test_sentence_transformers_gives_our_vectors(
    pooling: str, normalize: bool, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    path, directory = write_tuned(tmp_path, pooling=pooling, normalize=normalize), tmp_path / "hub"
    write_directory(checkpoint.load(path), str(directory))
    found = library.SentenceTransformer(str(directory), device="cpu").encode(TEXTS)
    assert np.abs(found - EmbeddingPipeline(path).embed(TEXTS)).max() < 1e-5
