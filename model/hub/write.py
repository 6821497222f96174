"""What the stage export does, once torch is there: write the directory, read it back, compare with transformers."""

from __future__ import annotations

import json

from model.checkpoint import CONFIG, WEIGHTS, Loaded, copy_files, load_input
from model.families.hub import hub_of
from model.hub.card import model_card
from model.hub.parity import TOLERANCE, compare_with_transformers
from model.hub.read import read_directory
from model.tensors import write_tensors
from pipeline.core import storage
from pipeline.core.errors import ClozeError
from pipeline.core.registry import load
from pipeline.core.stage import Build, Outcome

# What else a head's directory holds: `module:function` of (the checkpoint, the directory), called when all other files are there.
BESIDE: dict[str, str] = {
    "embedding": "model.hub.sentence_transformers:write",
    "lm": "model.hub.generation:write",
}

TOKENIZER_CONFIG = "tokenizer_config.json"


def export(build: Build) -> Outcome:
    """Export the input checkpoint to `build.path`.

    Returns:
        summary: `directory`; `architecture`; `parameters`; `max_logit_difference`, the largest difference of any logit from
        what transformers computes from the directory, None where transformers is not installed.

    Raises:
        DataError: there is no checkpoint, or it is damaged, or has no Hugging Face form.
        ClozeError: what was written does not read back, or gives other logits.
    """
    loaded = load_input(build, build.inputs["checkpoint"])
    config = write_directory(loaded, build.path)
    check_reload(loaded, build.path)
    difference = compare_with_transformers(loaded, build.path) if storage.is_local(build.path) else None
    if difference is not None and not difference.relative <= TOLERANCE:
        raise ClozeError(
            f"{build.path} gives logits that differ by {difference.absolute:.2e} from the checkpoint's; please report this"
        )
    summary = {
        "directory": build.path,
        "architecture": config["architectures"][0],
        "parameters": sum(
            tensor.numel() for tensor in hub_of(loaded.model.family).exported(loaded.state, loaded.heads).values()
        ),
        "max_logit_difference": None if difference is None else difference.absolute,
    }
    return Outcome(summary=summary)


def write_directory(loaded: Loaded, directory: str) -> dict[str, list[str]]:
    """Write the checkpoint as a Hugging Face directory; returns the content of its config.json."""
    hub = hub_of(loaded.model.family)
    config = hub.to_config(loaded.model, loaded.heads, loaded.task)
    write_tensors(storage.join(directory, WEIGHTS), hub.to_state(loaded.state, loaded.heads))
    copy_files(loaded.tokenizer, directory)
    name = storage.join(directory, TOKENIZER_CONFIG)
    settings = json.loads(storage.read_text(name)) if storage.exists(name) else {}
    settings["model_max_length"] = loaded.model.max_position_embeddings  # so that truncation=True means something
    _write_json(name, settings)
    storage.write_bytes(storage.join(directory, "README.md"), model_card(loaded, config["architectures"][0]).encode())
    _write_json(storage.join(directory, CONFIG), config)
    for head in loaded.heads:
        if head in BESIDE:
            load(BESIDE[head])(loaded, directory)
    return config


def check_reload(loaded: Loaded, directory: str) -> None:
    """Read the directory back through the table.

    Raises:
        ClozeError: a weight or the config is not what was exported.
    """
    found = read_directory(directory, family=loaded.model.family)
    exported = hub_of(loaded.model.family).exported(loaded.state, loaded.heads)
    read = {name: tensor for name, tensor in found.state.items() if name not in found.fresh}
    wrong = sorted(read.keys() ^ exported.keys())
    wrong += [name for name in sorted(read.keys() & exported.keys()) if not read[name].equal(exported[name])]
    if found.model != loaded.model:
        wrong.append(CONFIG)
    if wrong:
        raise ClozeError(f"{directory} does not read back as it was written ({wrong[0]} differs); please report this")


def _write_json(path: str, content: object) -> None:
    storage.write_bytes(path, (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode())
