"""The papers' models as functions, each citing its table. Training recipes live with the trainer.

    bert-tiny, bert-mini, bert-small, bert-medium   Turc et al., "Well-Read Students Learn Better", 2019, Table 1
    bert-base, bert-large, bert-l3 … bert-l12-wide  Devlin et al., "BERT", 2019, section 3 and Table 6
    roberta-base, roberta-large                     Liu et al., "RoBERTa", 2019, section 5
    albert-base … albert-xxlarge                    Lan et al., "ALBERT", 2020, Table 1
    spanbert-base, spanbert-large                   Joshi et al., "SpanBERT", 2020, section 4.2
    electra-small, electra-base, electra-large      Clark et al., "ELECTRA", 2020, Table 6
    distilbert-base                                 Sanh et al., "DistilBERT", 2019, Table 3
    ltr-base                                        Devlin et al., Table 5
    longformer-base, longformer-large               Beltagy et al., "Longformer", 2020, section 5
    modern-base, modern-large                       Warner et al., "ModernBERT", 2024, Table 4

Every family has a tiny one of 2 layers and 128, to try things on. Parameter counts are those of the paper's own vocabulary (30,522
pieces for BERT, 50,265 for RoBERTa, 30,000 for ALBERT, 28,996 for SpanBERT), pretraining heads included where the text says nothing
else; `tests/model/families/test_presets.py` holds each against transformers'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from model.families.albert.config import AlbertConfig
from model.families.config import ModelConfig
from model.families.distilbert.config import DistilBertConfig
from model.families.electra.config import ElectraConfig
from model.families.longformer.config import LongformerConfig
from model.families.ltr.config import LtrConfig
from model.families.modern.config import ModernConfig
from model.families.roberta.config import RobertaConfig
from model.families.spanbert.config import SpanBertConfig
from model.families.table import FAMILIES, config_class
from pipeline.core.config import parse_config
from pipeline.core.errors import UsageError, did_you_mean


def _size(layers: int, hidden_size: int) -> dict[str, Any]:
    """The rule that nearly all sizes share: heads of width 64, a feed-forward block four times as wide (BERT, footnote 3)."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden_size,
        "num_attention_heads": hidden_size // 64,
        "intermediate_size": 4 * hidden_size,
    }


def bert_tiny() -> ModelConfig:
    """2 layers of 128, 4.4M parameters (Turc et al., Table 1)."""
    return ModelConfig(**_size(2, 128))


def bert_mini() -> ModelConfig:
    """4 layers of 256, 11.3M parameters (Turc et al., Table 1)."""
    return ModelConfig(**_size(4, 256))


def bert_small() -> ModelConfig:
    """4 layers of 512, 29.1M parameters (Turc et al., Table 1)."""
    return ModelConfig(**_size(4, 512))


def bert_medium() -> ModelConfig:
    """8 layers of 512, 41.7M parameters (Turc et al., Table 1)."""
    return ModelConfig(**_size(8, 512))


def bert_base() -> ModelConfig:
    """12 layers of 768, 110M parameters: 109.5M in encoder and pooler (Devlin et al., section 3)."""
    return ModelConfig(**_size(12, 768))


def bert_large() -> ModelConfig:
    """24 layers of 1024, 340M parameters in the paper's rounding, 335.1M counted in encoder and pooler (Devlin et al., section 3)."""
    return ModelConfig(**_size(24, 1024))


def bert_l3() -> ModelConfig:
    """3 layers of 768, 12 heads; held-out perplexity 5.84 in the paper (Devlin et al., Table 6, row 1)."""
    return ModelConfig(**_size(3, 768))


def bert_l6_a3() -> ModelConfig:
    """6 layers of 768 with 3 heads of width 256; perplexity 5.24 (Devlin et al., Table 6, row 2)."""
    return ModelConfig(**{**_size(6, 768), "num_attention_heads": 3})


def bert_l6() -> ModelConfig:
    """6 layers of 768, 12 heads; perplexity 4.68 (Devlin et al., Table 6, row 3)."""
    return ModelConfig(**_size(6, 768))


def bert_l12_wide() -> ModelConfig:
    """12 layers of 1024, 16 heads; perplexity 3.54 (Devlin et al., Table 6, row 5). Row 4 is bert-base, row 6 bert-large."""
    return ModelConfig(**_size(12, 1024))


def _roberta(layers: int, hidden_size: int) -> ModelConfig:
    """layer_norm_eps 1e-5 is fairseq's, which RoBERTa was trained with."""
    return RobertaConfig(**_size(layers, hidden_size), layer_norm_eps=1e-5)


def roberta_tiny() -> ModelConfig:
    """2 layers of 128."""
    return _roberta(2, 128)


def roberta_base() -> ModelConfig:
    """12 layers of 768, 125M parameters: 124.7M with the LM head (Liu et al., section 5.1: BERT-base's sizes and 50K BPE units)."""
    return _roberta(12, 768)


def roberta_large() -> ModelConfig:
    """24 layers of 1024, 355M parameters: 355.4M with the LM head (Liu et al., section 5)."""
    return _roberta(24, 1024)


def albert_tiny() -> ModelConfig:
    """2 layers of 128 that share their parameters."""
    return AlbertConfig(**_size(2, 128))


def albert_base() -> ModelConfig:
    """12 layers of 768, E = 128: 12M parameters in Table 1, 11.7M counted in encoder and pooler."""
    return AlbertConfig(**_size(12, 768))


def albert_large() -> ModelConfig:
    """24 layers of 1024: 18M parameters in Table 1, 17.7M counted in encoder and pooler."""
    return AlbertConfig(**_size(24, 1024))


def albert_xlarge() -> ModelConfig:
    """24 layers of 2048: 60M parameters in Table 1, 58.7M counted; 16 heads of width 128 (google-research/albert, albert_config.json)."""
    return AlbertConfig(**{**_size(24, 2048), "num_attention_heads": 16})


def albert_xxlarge() -> ModelConfig:
    """12 layers of 4096, heads of width 64: 235M parameters in Table 1, 222.6M counted in encoder and pooler.

    The released model has 222.6M too; the paper does not say what else it counts.
    """
    return AlbertConfig(**_size(12, 4096))


def spanbert_tiny() -> ModelConfig:
    """2 layers of 128."""
    return SpanBertConfig(**_size(2, 128))


def spanbert_base() -> ModelConfig:
    """BERT-base with a span boundary head, on cased text (Joshi et al., section 4.2; the base model is of their release)."""
    return SpanBertConfig(**_size(12, 768))


def spanbert_large() -> ModelConfig:
    """BERT-large with a span boundary head, on cased text (Joshi et al., section 4.2)."""
    return SpanBertConfig(**_size(24, 1024))


def _electra(layers: int, hidden_size: int, *, embedding_size: int, generator_size: float) -> ModelConfig:
    return ElectraConfig(**_size(layers, hidden_size), embedding_size=embedding_size, generator_size=generator_size)


def electra_tiny() -> ModelConfig:
    """2 layers of 128, with a generator of half the width."""
    return _electra(2, 128, embedding_size=128, generator_size=0.5)


def electra_small() -> ModelConfig:
    """12 layers of 256, E = 128, generator 1/4: 14M parameters in the discriminator (Clark et al., Table 6 and Table 1)."""
    return _electra(12, 256, embedding_size=128, generator_size=0.25)


def electra_base() -> ModelConfig:
    """12 layers of 768, generator 1/3: 110M parameters in the discriminator (Clark et al., Table 6)."""
    return _electra(12, 768, embedding_size=768, generator_size=1 / 3)


def electra_large() -> ModelConfig:
    """24 layers of 1024, generator 1/4: 335M parameters in the discriminator (Clark et al., Table 6)."""
    return _electra(24, 1024, embedding_size=1024, generator_size=0.25)


def distilbert_tiny() -> ModelConfig:
    """2 layers of 128."""
    return DistilBertConfig(**_size(2, 128))


def distilbert_base() -> ModelConfig:
    """6 layers of 768, 66M parameters: 66.4M in the encoder, 67.0M with the LM head (Sanh et al., Table 3)."""
    return DistilBertConfig(**_size(6, 768))


def ltr_tiny() -> ModelConfig:
    """2 layers of 128 that see only what came before."""
    return LtrConfig(**_size(2, 128))


def ltr_base() -> ModelConfig:
    """BERT-base's sizes, left to right (Devlin et al., Table 5, "LTR & No NSP")."""
    return LtrConfig(**_size(12, 768))


def longformer_tiny() -> ModelConfig:
    """2 layers of 128 with windows of 64."""
    return LongformerConfig(**_size(2, 128), attention_window=64)


def longformer_base() -> ModelConfig:
    """12 layers of 768, windows of 512, 4,096 positions: RoBERTa-base made longer, 148M parameters (section 5)."""
    return LongformerConfig(**_size(12, 768))


def longformer_large() -> ModelConfig:
    """24 layers of 1024, windows of 512, 4,096 positions: RoBERTa-large made longer, 435M parameters (section 5)."""
    return LongformerConfig(**_size(24, 1024))


def modern_tiny() -> ModelConfig:
    """2 layers of 128, one global and one local, with the feed-forward block half as wide again, as modern-base has it."""
    return ModernConfig(num_hidden_layers=2, hidden_size=128, num_attention_heads=2, intermediate_size=192)


def modern_base() -> ModelConfig:
    """22 layers of 768, feed-forward 1,152, 12 heads; 149M parameters with 50,368 pieces (Table 4)."""
    return ModernConfig()


def modern_large() -> ModelConfig:
    """28 layers of 1024, feed-forward 2,624, 16 heads; 395M parameters with 50,368 pieces (Table 4)."""
    return ModernConfig(num_hidden_layers=28, hidden_size=1024, num_attention_heads=16, intermediate_size=2624)


_FUNCTIONS = (
    bert_tiny, bert_mini, bert_small, bert_medium, bert_base, bert_large, bert_l3, bert_l6_a3, bert_l6, bert_l12_wide,
    roberta_tiny, roberta_base, roberta_large, albert_tiny, albert_base, albert_large, albert_xlarge, albert_xxlarge,
    spanbert_tiny, spanbert_base, spanbert_large, electra_tiny, electra_small, electra_base, electra_large,
    distilbert_tiny, distilbert_base, ltr_tiny, ltr_base, longformer_tiny, longformer_base, longformer_large,
    modern_tiny, modern_base, modern_large,
)  # fmt: skip
MODELS: dict[str, Callable[[], ModelConfig]] = {function.__name__.replace("_", "-"): function for function in _FUNCTIONS}


def model_config(model: str | Mapping[str, Any] | ModelConfig, **overrides: Any) -> ModelConfig:
    """The config of a model that is named, or spelled out, or both.

    Args:
        model: a preset's name, a config, or a mapping of config values that may start from a preset by the key `preset`.
        overrides: values that replace the preset's.

    Raises:
        UsageError: an unknown preset or key, with the nearest known one, or a value out of range.
    """
    if isinstance(model, str):
        values = _preset(model).model_dump()
    elif isinstance(model, ModelConfig):
        values = model.model_dump()
    else:
        values = dict(model)
        name = values.pop("preset", None)
        if name is not None:
            values = {**_preset(str(name)).model_dump(), **values}
    values |= overrides
    family = values.get("family", "bert")
    return parse_config(config_class(family if family in FAMILIES else "bert"), values, "model")


def _preset(name: str) -> ModelConfig:
    if name not in MODELS:
        raise UsageError(f"unknown model {name!r}; {did_you_mean(name, MODELS)}")
    return MODELS[name]()
