"""A Hugging Face T5 with its own SentencePiece vocabulary: imported, used, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.stages.execute import execute
from cloze.labs.seq2seq.generate import generation_pipeline
from cloze.labs.seq2seq.kv_cache import RelativeBias
from cloze.model.families.hub_formats import hub_of
from cloze.model.families.models import new_model
from cloze.model.families.registry import model_config
from cloze.model.hub.stages import EXPORT, IMPORT, ExportConfig, ImportConfig
from cloze.pipeline.tokenizer import load
from tests.pipeline.tokenizer.texts import TRAINING, trained_spiece


def test_it_writes_what_transformers_writes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs, out = tmp_path / "theirs", tmp_path / "out"
    theirs.mkdir()
    t5 = {"unk_id": 2, "eos_id": 1, "control_symbols": [], "user_defined_symbols": []}
    trained_spiece(theirs, vocab_size=150, **t5)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(
        vocab_size=256, **sizes, decoder_start_token_id=0, initializer_factor=1.5
    )
    torch.manual_seed(3)
    model = transformers.T5ForConditionalGeneration(config).eval()
    model.save_pretrained(theirs)
    execute(IMPORT, ImportConfig(), {"directory": str(theirs)}, str(out))
    pieces, pipeline = load(str(theirs)), generation_pipeline(str(out))
    for text in (own[:120] for own in TRAINING[:4]):
        ids = torch.tensor([pieces.backend.encode(text).ids])
        assert pipeline.question(text) == ids[0].tolist()
        with torch.no_grad():
            expected = model.generate(ids, max_new_tokens=8, do_sample=False)[0, 1:].tolist()
        (written,) = pipeline.generate([text], tokens=8)
        assert list(written[0].ids) == [token for token in expected if token != 1]
    execute(EXPORT, ExportConfig(), {"checkpoint": str(out)}, str(tmp_path / "hub"))
    again = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hub"))
    assert again("the cat").input_ids == pieces.backend.encode("the cat").ids
    content = json.loads((tmp_path / "hub" / "generation_config.json").read_text())
    assert "bos_token_id" not in content


@pytest.mark.parametrize("preset", ["t5-tiny", "t5-v1.1-tiny"])
def test_weights_begin_as_wide_as_transformers(preset: str) -> None:
    """But for the matrix of version 1.1's logits, which transformers draws as wide as words."""
    transformers = pytest.importorskip("transformers")
    config: Any = model_config({"preset": preset, "vocab_size": 500})
    torch.manual_seed(0)
    state = new_model(config).state_dict()
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=500,
            d_model=config.hidden_size,
            d_kv=config.head_size,
            num_heads=config.num_attention_heads,
            d_ff=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            feed_forward_proj="gated-gelu" if config.gated else "relu",
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
    ours = {
        name: float(weight.std())
        for name, weight in hub_of("t5").to_state(state, (), config).items()
        if weight.ndim == 2 and name != "lm_head.weight"
    }
    for name, weight in theirs.state_dict().items():
        if name in ours and "relative" not in name:
            assert ours.pop(name) == pytest.approx(float(weight.std()), rel=0.1), name
    assert all("relative" in name for name in ours)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (128, 100), (256, 100), (8, 12)])
def test_distances_have_the_buckets_of_transformers(
    buckets: int, farthest: int, causal: bool
) -> None:
    """Also where only the rounding of a logarithm decides."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    offsets = torch.arange(-600, 601)
    ours = RelativeBias(1, buckets=buckets, farthest=farthest, causal=causal).bucket(offsets)
    theirs = t5.T5Attention._relative_position_bucket(offsets, not causal, buckets, farthest)
    assert ours.tolist() == theirs.tolist()
