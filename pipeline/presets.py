"""The papers' datasets as functions, each citing its table: configs for `cloze dataset`, as far as examples go.

    from pipeline.presets import dataset_config
    dataset_config("roberta")        # an ExampleConfig
    flows/presets/ablation-*.yaml    # the ablations below as whole runs on the texts and with the model of the demo, for `cloze run`

Light: no numpy, no Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.errors import UsageError, did_you_mean
from pipeline.examples.config import ExampleConfig


def bert_128() -> ExampleConfig:
    """The first 90 % of BERT's steps (Devlin et al. 2019, appendix A.2; 20 predictions: google-research/bert, README)."""
    return ExampleConfig(recipe="bert", length=128)


def bert_512() -> ExampleConfig:
    """The last 10 % of BERT's steps (appendix A.2), with the cap of 77 that the README computes for length 512."""
    return ExampleConfig(recipe="bert", length=512, max_predictions=77)


def bert_wwm_128() -> ExampleConfig:
    """BERT's whole-word models, short rows (google-research/bert, README of May 31st, 2019)."""
    return ExampleConfig(recipe="bert-wwm", length=128)


def bert_wwm_512() -> ExampleConfig:
    """BERT's whole-word models, long rows (the same)."""
    return ExampleConfig(recipe="bert-wwm", length=512, max_predictions=77)


def roberta() -> ExampleConfig:
    """RoBERTa: FULL-SENTENCES of 512 tokens (Liu et al. 2019, section 4 and table 2)."""
    return ExampleConfig(recipe="roberta", length=512)


def roberta_doc_sentences() -> ExampleConfig:
    """RoBERTa's comparison of inputs: DOC-SENTENCES (Liu et al. 2019, table 2)."""
    return ExampleConfig(recipe="roberta-doc", length=512)


def roberta_segment_pair() -> ExampleConfig:
    """RoBERTa's comparison of inputs: SEGMENT-PAIR with NSP, BERT's own (Liu et al. 2019, table 2)."""
    return ExampleConfig(recipe="roberta", pairing="nsp", short_seq_prob=0.1, length=512)


def albert() -> ExampleConfig:
    """ALBERT: SOP and n-gram masks at 512, 10 % of documents shorter (Lan et al. 2020, section 4.1)."""
    return ExampleConfig(recipe="albert", length=512)


def albert_nsp() -> ExampleConfig:
    """ALBERT's comparison of pair tasks: NSP instead of SOP (Lan et al. 2020, table 5)."""
    return ExampleConfig(recipe="albert", pairing="nsp", length=512)


def albert_no_pair_task() -> ExampleConfig:
    """ALBERT's comparison of pair tasks: none (Lan et al. 2020, table 5)."""
    return ExampleConfig(recipe="albert", pairing="segment-pair", length=512)


def spanbert() -> ExampleConfig:
    """SpanBERT: single segments of up to 512 tokens, no short ones (Joshi et al. 2020, sections 3 and 4.2)."""
    return ExampleConfig(recipe="spanbert", length=512, short_seq_prob=0.0)


def spanbert_whole_words() -> ExampleConfig:
    """SpanBERT's comparison of masks: whole words (Joshi et al. 2020, table 6)."""
    return ExampleConfig(recipe="spanbert", masking="whole-word", length=512, short_seq_prob=0.0)


def spanbert_subwords() -> ExampleConfig:
    """SpanBERT's comparison of masks: subword tokens (Joshi et al. 2020, table 6)."""
    return ExampleConfig(recipe="spanbert", masking="token", length=512, short_seq_prob=0.0)


def electra_small() -> ExampleConfig:
    """ELECTRA-small: 128 tokens, 15 % masked, at most 19 (Clark et al. 2020, table 6)."""
    return ExampleConfig(recipe="electra", length=128)


def electra_base() -> ExampleConfig:
    """ELECTRA-base: 512 tokens, 15 % masked (Clark et al. 2020, table 6)."""
    return ExampleConfig(recipe="electra", length=512)


def electra_large() -> ExampleConfig:
    """ELECTRA-large: 512 tokens, 25 % masked (Clark et al. 2020, table 6)."""
    return ExampleConfig(recipe="electra", length=512, mask_rate=0.25)


def mosaicbert() -> ExampleConfig:
    """MosaicBERT: 128 tokens, no pair task, 30 % masked (Portes et al. 2023, section 3.2)."""
    return ExampleConfig(recipe="packed", length=128)


def modernbert() -> ExampleConfig:
    """ModernBERT's first phase: 1024 tokens, packed, no pair task, 30 % masked (Warner et al. 2024, section 2.2.1)."""
    return ExampleConfig(recipe="packed", length=1024)


def mask_rate_40() -> ExampleConfig:
    """40 % masked, for large models (Wettig et al. 2023, "Should You Mask 15% in Masked Language Modeling?", table 1)."""
    return ExampleConfig(recipe="roberta", mask_rate=0.4, length=128)


def table5_bert() -> ExampleConfig:
    """BERT's ablation of the pretraining tasks: BERT itself (Devlin et al. 2019, table 5)."""
    return ExampleConfig(recipe="bert", length=128)


def table5_no_nsp() -> ExampleConfig:
    """The same rows without the pair task: "No NSP" (Devlin et al. 2019, table 5)."""
    return ExampleConfig(recipe="bert", pairing="segment-pair", length=128)


def table5_ltr() -> ExampleConfig:
    """The same rows without the pair task, read left to right: "LTR & No NSP" (table 5); its "+ BiLSTM" is a matter of fine-tuning."""
    return ExampleConfig(recipe="bert", pairing="segment-pair", masking="none", copies=1, length=128)


def _table8(mask: float, same: float, random: float) -> Callable[[], ExampleConfig]:
    """A row of BERT's ablation of the masking procedure (Devlin et al. 2019, table 8): shares of [MASK], same and random."""

    def config() -> ExampleConfig:
        return ExampleConfig(recipe="bert", length=128, mask_share=mask, random_share=random)

    config.__doc__ = f"{mask:.0%} [MASK], {same:.0%} kept, {random:.0%} random (Devlin et al. 2019, appendix C.2, table 8)."
    return config


# Rows of Table 8 in its order; names give the shares of [MASK], same and random.
TABLE8 = {
    "table8-80-10-10": _table8(0.8, 0.1, 0.1),
    "table8-100-0-0": _table8(1.0, 0.0, 0.0),
    "table8-80-0-20": _table8(0.8, 0.0, 0.2),
    "table8-80-20-0": _table8(0.8, 0.2, 0.0),
    "table8-0-20-80": _table8(0.0, 0.2, 0.8),
    "table8-0-0-100": _table8(0.0, 0.0, 1.0),
}

DATASETS: dict[str, Callable[[], ExampleConfig]] = {
    "bert-128": bert_128,
    "bert-512": bert_512,
    "bert-wwm-128": bert_wwm_128,
    "bert-wwm-512": bert_wwm_512,
    "roberta": roberta,
    "roberta-doc-sentences": roberta_doc_sentences,
    "roberta-segment-pair": roberta_segment_pair,
    "albert": albert,
    "albert-nsp": albert_nsp,
    "albert-no-pair-task": albert_no_pair_task,
    "spanbert": spanbert,
    "spanbert-whole-words": spanbert_whole_words,
    "spanbert-subwords": spanbert_subwords,
    "electra-small": electra_small,
    "electra-base": electra_base,
    "electra-large": electra_large,
    "mosaicbert": mosaicbert,
    "modernbert": modernbert,
    "mask-rate-40": mask_rate_40,
    "table5-bert": table5_bert,
    "table5-no-nsp": table5_no_nsp,
    "table5-ltr": table5_ltr,
    **TABLE8,
}


def dataset_config(name: str) -> ExampleConfig:
    """The dataset of that name; `UsageError` with the nearest known one if there is none."""
    if name not in DATASETS:
        raise UsageError(f"unknown dataset preset {name!r}; {did_you_mean(name, DATASETS)}")
    return DATASETS[name]()


def dataset_values(name: str) -> dict[str, Any]:
    """What of `dataset_config` differs from the recipe: the shortest `dataset:` section that means the same."""
    config = dataset_config(name)
    base = ExampleConfig(recipe=config.recipe, length=config.length, mask_rate=config.mask_rate, budget=config.budget)
    plain = ExampleConfig(recipe=config.recipe)
    found: dict[str, Any] = {"recipe": config.recipe, "length": config.length}
    for field, value in config.model_dump().items():
        default = getattr(base if field == "max_predictions" else plain, field)
        if field not in found and value != default:
            found[field] = value
    return found
