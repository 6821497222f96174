"""Heading of each config field in `--help`, by stage.

A star marks the fields that plain `--help` shows, about twenty; `--help-all` shows all. A field
without a row is under "Other" in `--help-all`, and a test then demands a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """Heading of an option; `common`: shown by plain `--help`."""

    group: str
    common: bool


ON_ONE_DEVICE = {"Processes and device": "*device *gpu_ids threads", "Failures": "timeout_minutes"}

EXECUTION = {
    "Logging and evaluation": "profile_steps",
    "Checkpoints": "*checkpoint_every keep_checkpoints",
    "Memory and speed": "engine zero offload *micro_batch activation_checkpointing compile",
    "Processes and hosts": "*processes *launcher *hostfile nodes remote_python"
    " ssh_options slurm_options kubernetes_options device gpu_ids threads",
    "Failures": "restarts min_nodes min_processes timeout_minutes grace_seconds hang_seconds",
    "Beam": "*workers *runner flink_master worker_pool beam_options dedup_in_memory_documents",
}

STAGES: dict[str, Mapping[str, str]] = {
    "corpus": {
        "Sources": "*sources *on_error *licences max_rejected_share maximum_document_bytes",
        "Size and mixture": "*max_words *mixture mixture_by mixture_temperature mixture_epochs",
        "Language": "*language *keep_languages language_probability",
        "Quality rules": "*preset web_sources *minimum_characters *minimum_words"
        " maximum_characters minimum_letters"
        " gopher_quality gopher_repetition c4 c4_end_marks boilerplate drop_repeated_lines"
        " drop_repeated_paragraphs",
        "Quality filter": "*quality_filter quality_filter_loss quality_filter_sources",
        "Deduplication": "*dedup dedup_similarity dedup_bands dedup_rows dedup_ngram",
        "Personal data": "*mask_personal_data personal_data_allowed",
        "Blocked words": "*blocked_words blocked_words_unit blocked_words_allowed",
        "Decontamination": "*decontaminate decontaminate_words decontaminate_minimum_words"
        " decontaminate_unit",
        "Text cleaning": "normalize_unicode repair_unicode",
        "Source formats": "extractor blank_line_documents"
        " dropped_sections kept_sections"
        " disambiguation_templates tables infobox math other_wikis",
        "Output": "*heldout_fraction *keep_rejected shard_bytes",
    },
    "filter": {"Documents": "*good *bad *language", "Model": "*kind bits"},
    "vectors": {
        "Vectors": "*pooling *max_length *windows",
        "Memory and speed": "*precision *micro_batch engine",
    },
    "semdedup": {"Deduplication": "*similarity *center clusters rounds"},
    "vocab": {
        "Training": "*kind *size *lowercase strip_accents min_frequency limit_alphabet"
        " sample_bytes",
        "Start from another tokenizer": "*import_path *extend_path *add *words_file",
    },
    "dataset": {
        "Rows": "*recipe *length *length_bins *lowercase short_seq_prob *seed",
        "Masking": "*masking *mask_rate *mask_copies mask_rounding max_predictions mask_share"
        " random_share random_from max_ngram span_p max_span",
        "Pairing": "*pairing random_next_prob swap_prob single_segment_prob",
        "Output": "*shards compression",
    },
    "pretrain": {
        "Model and objective": "*model *objectives causal_share final_mask_rate"
        " dynamic_masking *seed",
        "Duration": "*steps *tokens *max_time",
        "Batch": "*global_batch initial_batch batch_ramp_steps",
        "Mixture of datasets": "mixture",
        "Optimizer": "*learning_rate *optimizer embedding_lr_multiplier hidden_lr_multiplier"
        " betas eps weight_decay grad_clip ema",
        "Learning-rate schedule": "*schedule *warmup_steps warmup_share decay_share"
        " min_lr_ratio schedule_steps",
        "Logging and evaluation": "*evaluate_every heldout_rows log_every",
        "Checkpoints": "milestones keep_for_merge",
        "Memory and speed": "*precision grad_reduce_dtype",
        "Failures": "max_skipped",
    },
    "merge": {"Checkpoints": "*last *steps *decay", **ON_ONE_DEVICE},
    "finetune": {
        "Task and data": "*task *data *max_length *limit_per_class class_weights"
        " task_sampling_power",
        "Model": "dropout pooling frozen lstm_size lstm_layers bilstm",
        "Optimization": "*epochs *global_batch *learning_rate *warmup_share optimizer layer_decay"
        " embedding_lr_multiplier weight_decay"
        " grad_clip *seed",
        "Selection and baselines": "*patience *select_checkpoint *baselines from_scratch model",
        "Memory and speed": "*precision",
    },
    "evaluate": {
        "Task and data": "*task *data *split *resamples seed",
        "Memory and speed": "*precision",
        **ON_ONE_DEVICE,
    },
    "perplexity": {"Rows": "*rows *batch_size", "Memory and speed": "*precision", **ON_ONE_DEVICE},
    "score": {
        "Pairs": "*data *columns *limit",
        "Scoring": "*mask *normalize resamples seed",
        "Memory and speed": "*precision",
        **ON_ONE_DEVICE,
    },
    "import": {"Model": "*family *positions *trust_pickle", **ON_ONE_DEVICE},
    "export": {**ON_ONE_DEVICE},
    "report": {"Contents": "*masked *top_k"},
}


def places(stage: str, more: Mapping[str, str] = EXECUTION) -> dict[str, Place]:
    """Return the place of each field of a stage and of `more`, in the order of `--help`."""
    by_field: dict[str, Place] = {}
    for table in (STAGES.get(stage, {}), more):
        for group, names in table.items():
            for name in names.split():
                by_field.setdefault(name.removeprefix("*"), Place(group, name.startswith("*")))
    return by_field
