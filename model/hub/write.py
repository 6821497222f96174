"""Export of a checkpoint: write the directory, read it back, compare with transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.fingerprints import artifact_fingerprint_of
from cloze.core.artifacts.lineage import NearbyArtifacts
from cloze.core.errors import ClozeError, UsageError
from cloze.core.humanize import format_count
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model.checkpoint import CONFIG, WEIGHTS, LoadedCheckpoint, copy_files, load_input
from cloze.model.families.hub_format import EMBEDDING
from cloze.model.families.hub_formats import hub_of
from cloze.model.families.pruned import with_all_heads
from cloze.model.hub.card import model_card
from cloze.model.hub.config import FORMS, ExportConfig, ExportForm
from cloze.model.hub.parity import (
    check_pair,
    compare_with_transformers,
    exported_heads,
    not_compared,
)
from cloze.model.hub.read import check_padding, read_directory
from cloze.model.tensors import write_tensors
from cloze.pipeline import tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"
ENCODER, MASKED_LM, PRETRAINING = "encoder", "masked-lm", "pretraining"
SENTENCE_TRANSFORMERS = "sentence-transformers"
REVISIONS = "revisions"
_EARLIER = {"pretrain": "continue", "merge": "checkpoint"}  # inputs with earlier milestones


def export(build: BuildContext, config: ExportConfig) -> StageResult:
    """Export the input checkpoint to `build.path`.

    Returns:
        summary: `directory`; `architecture`; `parameters`; `max_logit_difference` from
            transformers, None with the reason `not_compared`; `left_out`, modules that were never
            trained; by the name of a further form, its part; `revisions`, directory by name.

    Raises:
        ModuleNotFoundError: a form needs packages that are not installed.
        DataError: the checkpoint is missing or damaged, or has no Hugging Face form.
        UsageError: the checkpoint lacks the heads that `export_as` needs, there are no milestones,
            or a form is not for the checkpoint or the directory.
        ClozeError: the written directory does not read back, or gives other logits or tokens.
    """
    source = build.inputs["checkpoint"]
    milestones = _milestones(source) if config.revisions else {}
    summary = _export_checkpoint(load_input(build, source), build.path, config)
    for name, path in milestones.items():
        _export_checkpoint(load_input(build, path), build.file(REVISIONS, name), config)
    if milestones:
        summary["revisions"] = {name: f"{REVISIONS}/{name}" for name in milestones}
    return StageResult(summary=summary)


def _milestones(source: str) -> dict[str, str]:
    """Return the milestone checkpoints of a pretraining's phases, or a merge's, by revision name.

    Raises:
        UsageError: `source` is neither, or there are no milestones.
    """
    names: dict[str, str] = {}
    nearby = NearbyArtifacts(storage.absolute(source))
    directory: str | None = source
    while directory is not None and (manifest := artifact.find_manifest(directory)) is not None:
        steps, words = (
            manifest.summary.get(name) or {} for name in ("milestones", "milestone_words")
        )
        names |= {f"step-{step}": storage.join(directory, path) for step, path in steps.items()}
        for number, path in words.items():  # as BabyLM's suite names them
            names[f"chck_{format_count(int(number))}"] = storage.join(directory, path)
        parent = manifest.parents.get(_EARLIER.get(manifest.stage, ""))
        directory = nearby.find(artifact_fingerprint_of(parent)) if parent else None
    if not names:
        raise UsageError(
            f"--revisions needs a finished pretraining with milestones ({source} has none); train "
            f"with --milestone, or milestone_words"
        )
    return names


def _export_checkpoint(
    checkpoint: LoadedCheckpoint, directory: str, config: ExportConfig
) -> dict[str, Any]:
    """Write and check one directory; return its summary."""
    form = FORMS.find(config.format) if config.format != "safetensors" else ExportForm()
    form.check(checkpoint, directory)
    loaded = in_form(checkpoint, config.export_as)
    model, state = with_all_heads(loaded.model, loaded.state)  # transformers has no other form
    loaded = replace(loaded, model=model, state=state)
    written = trained_part(loaded)
    hub_config = write_directory(written, directory, config.export_as)
    check_reload(written, directory)
    difference = compare_with_transformers(loaded, directory)
    if difference is not None:
        check_pair(loaded, directory)
    exported = hub_of(loaded.model.family, loaded.heads).exported(written.state, written.heads)
    summary: dict[str, Any] = {
        "directory": directory,
        "architecture": hub_config["architectures"][0],
        "parameters": sum(tensor.numel() for tensor in exported.values()),
        "max_logit_difference": None if difference is None else difference.absolute,
        "compared": [] if difference is None else list(difference.compared),
        "not_compared": not_compared(directory),
        "left_out": list(loaded.untrained),
    }
    if form.add is not None:
        summary[config.format] = form.add(loaded, directory, summary["architecture"], config)
    return summary


def trained_part(loaded: LoadedCheckpoint) -> LoadedCheckpoint:
    """Return the checkpoint without heads that were never trained; all of it, if no class of
    transformers has exactly the others.
    """
    heads = exported_heads(loaded)
    if heads is loaded.heads:
        return loaded
    modules = tuple(f"{module}." for module in loaded.untrained)
    state = {name: value for name, value in loaded.state.items() if not name.startswith(modules)}
    return replace(loaded, heads=heads, state=state)


def in_form(loaded: LoadedCheckpoint, export_as: str | None) -> LoadedCheckpoint:
    """Return the checkpoint with the heads that `export_as` keeps.

    Raises:
        UsageError: the checkpoint has no such heads.
    """
    if export_as in (MASKED_LM, PRETRAINING):
        hub = hub_of(loaded.model.family, loaded.heads)
        architecture = hub.architecture(loaded.heads)
        fits = architecture.endswith(("ForMaskedLM", "ForPreTraining"))
        if not fits or (export_as == MASKED_LM and "masked_lm" in hub.unexported):
            raise UsageError(
                f"--as {export_as} needs other heads than those of the checkpoint "
                f"({', '.join(loaded.heads)}: {architecture}); use --as encoder, or leave it out"
            )
        return loaded
    if export_as is None or (EMBEDDING in loaded.heads and export_as == SENTENCE_TRANSFORMERS):
        return loaded
    # The pooling of `cloze embed`.
    pooling = {"pooling": "mean", "normalize": False} if export_as == SENTENCE_TRANSFORMERS else {}
    encoder = {name: value for name, value in loaded.state.items() if name.startswith("encoder.")}
    return replace(loaded, heads={EMBEDDING: pooling}, task=None, state=encoder, untrained=())


def write_directory(
    loaded: LoadedCheckpoint, directory: str, export_as: str | None = None
) -> dict[str, list[str]]:
    """Write the checkpoint as a Hugging Face directory; return the content of its config.json.

    Args:
        loaded: the checkpoint, see `in_form`.
        export_as: see `ExportConfig`.
    """
    pieces = tokenizer.load(loaded.tokenizer)
    check_padding(loaded.heads, pieces, loaded.path)
    hub = hub_of(loaded.model.family, loaded.heads)
    config = hub.to_config(loaded.model, loaded.heads, loaded.task)
    separators = (*pieces.pair_frame.separator, pieces.special.sep).count(pieces.special.sep)
    config |= hub.token_fields(loaded.heads, pieces.special, separators)
    if export_as == PRETRAINING:
        config["architectures"] = [hub.architecture(loaded.heads)]
    state = hub.to_state(loaded.state, loaded.heads, loaded.model)
    write_tensors(storage.join(directory, WEIGHTS), state)
    copy_files(loaded.tokenizer, directory)
    name = storage.join(directory, TOKENIZER_CONFIG)
    settings = storage.read_json(name) if storage.exists(name) else {}
    # Without it, truncation=True has no effect.
    settings["model_max_length"] = loaded.model.max_position_embeddings
    # Only models with token types use them.
    type_inputs = ["token_type_ids"] if loaded.model.type_vocab_size > 1 else []
    settings["model_input_names"] = ["input_ids", *type_inputs, "attention_mask"]
    _write_json(name, settings)
    card = model_card(loaded, config["architectures"][0])
    storage.write_bytes(storage.join(directory, "README.md"), card.encode())
    _write_json(storage.join(directory, CONFIG), config)
    if loaded.heads.get(EMBEDDING):
        _write_sentence_transformers(loaded, directory)
    if hub.is_causal or {"lm", "seq2seq"} & loaded.heads.keys():
        _write_generation_config(loaded, directory)
    return config


def _write_sentence_transformers(loaded: LoadedCheckpoint, directory: str) -> None:
    """Write the files with which sentence-transformers (2 to 6) opens an embedding model.

    modules.json: transformer, pooling and normalization.
    sentence_bert_config.json: maximum input length.
    1_Pooling/config.json: mean or first token.
    config_sentence_transformers.json: similarity function.
    """
    head = loaded.heads["embedding"]
    longest = int((loaded.task or {}).get("max_length", loaded.model.max_position_embeddings))
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    if not head["normalize"]:
        del modules["2_Normalize"]
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (path, name) in enumerate(modules.items())
        ],
        "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": loaded.model.hidden_size,
            "include_prompt": True,
            "pooling_mode_mean_tokens": head["pooling"] == "mean",
            "pooling_mode_cls_token": head["pooling"] == "first",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine" if head["normalize"] else "dot",
        },
    }
    for name, content in files.items():
        text = json.dumps(content, indent=2) + "\n"
        storage.write_bytes(storage.join(directory, name), text.encode())


def _write_generation_config(loaded: LoadedCheckpoint, directory: str) -> None:
    """Write the first, last and padding token for the `generate` of transformers."""
    special = tokenizer.load(loaded.tokenizer).special
    content = {
        **({"bos_token_id": special.cls} if special.begins else {}),
        "eos_token_id": special.sep,
        "pad_token_id": special.pad,
    }
    model = loaded.model
    decoder = {
        "decoder_start_token_id": model.start_token_id,
        "forced_bos_token_id": model.first_target_id,
    }
    content |= {name: number for name, number in decoder.items() if number is not None}
    _write_json(storage.join(directory, "generation_config.json"), content)


def check_reload(loaded: LoadedCheckpoint, directory: str) -> None:
    """Read the directory back.

    Raises:
        ClozeError: a weight or the config differs from what was exported.
    """
    reloaded = read_directory(directory, family=loaded.model.family)
    exported = hub_of(loaded.model.family, loaded.heads).exported(loaded.state, loaded.heads)
    reloaded_state = {
        name: tensor for name, tensor in reloaded.state.items() if name not in reloaded.fresh
    }
    common = reloaded_state.keys() & exported.keys()
    differences = sorted(reloaded_state.keys() ^ exported.keys())
    differences += [
        name for name in sorted(common) if not reloaded_state[name].equal(exported[name])
    ]
    if reloaded.model != loaded.model:
        differences.append(CONFIG)
    if differences:
        raise ClozeError(
            f"{directory} does not read back as it was written ({differences[0]} differs); please "
            f"report this"
        )


def _write_json(path: str, content: object) -> None:
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    storage.write_bytes(path, text.encode())
