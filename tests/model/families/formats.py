"""What each family's models look like outside: presets, config.json, names in files, refusals.

python -m tests.model.families.formats     writes formats.txt beside it
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cloze.core.errors import ClozeError
from cloze.model.families.hub_format import ENCODER, HubFormat
from cloze.model.families.hub_formats import exportable, hub_of
from cloze.model.families.models import new_model
from cloze.model.families.registry import FAMILIES
from tests.tiny_models import VARIANTS, tiny_config

FILE = Path(__file__).with_suffix(".txt")
TABLES = (
    "model_type", "aliases", "objectives", "task_rows", "refused", "legacy", "base",
    "unexported", "encoder_alone", "defaults",
)  # fmt: skip
TASK = {"task": "t", "labels": ["no", "yes"], "problem_type": "single_label_classification"}


def _shown(values: Any) -> str:
    return json.dumps(
        values, default=lambda value: sorted(value) if isinstance(value, frozenset) else str(value)
    )


def _presets(family: str) -> Iterator[str]:
    for name, preset in FAMILIES.find(family).PRESETS.items():
        values = {"heads": preset.heads, "scaled": preset.scaled_projections}
        own = preset.model_dump(mode="json", exclude_defaults=True)
        yield f"{name}: {_shown(own)} {_shown({name: value for name, value in values.items() if value})}"


def _refusals(hub: HubFormat, config: dict[str, Any]) -> Iterator[str]:
    for name, value in hub.fixed.items():
        for other in (not value if isinstance(value, bool) else "other", None):
            try:
                hub.from_config({**config, name: other}, "HERE")
                yield f"{name} {other!r} is read"
            except ClozeError as error:
                yield str(error)
    for heads in (*([head] for head in hub.refused), ["choice", "classifier"]):
        try:
            yield _shown(hub.to_config(tiny_config(hub.family), {head: {} for head in heads}, None))
        except ClozeError as error:
            yield f"{heads}: {error}"


def _format(hub: HubFormat) -> Iterator[str]:
    yield from (f"{name} {_shown(value)}" for name in TABLES if (value := getattr(hub, name)))
    for drop in hub.drops:
        yield f"drops {drop.names} {drop.copy_of or '-'} {drop.must_be or '-'} {drop.named}"
    for heads, architecture in hub.architectures.items():
        own = {head: {} for head in sorted(heads)}
        config = {"architectures": [architecture]}
        aliases = [
            hub.architecture(heads - {"embedding"}, name)
            for name in hub.aliases
            if heads != ENCODER
        ]
        yield f"{sorted(own)} {architecture} {hub.head_of(config)} {aliases}"
    for number, variant in enumerate(VARIANTS.get(hub.family, [{}])):
        model = tiny_config(hub.family, **variant)
        config = hub.to_config(model, model.heads, None)
        again = hub.from_config(config, "HERE")
        yield f"variant {variant}: {_shown(config)}"
        yield f"  read {_shown(again.model_dump(mode='json', exclude_defaults=True))}"
        with torch.device("meta"):
            state = new_model(model).state_dict()
        names = hub.keys_for(model.heads)
        for name, tensor in hub.exported(state, model.heads).items():
            theirs = names.to_hf(name) or "-"
            parts = list(names.split(theirs, tensor))
            if number == 0 and ".1." not in name:
                yield f"  {name} {theirs} {parts if parts != [theirs] else ''}"
    yield from _refusals(hub, config)
    if hub.family == "bert":
        for head in ("classifier", "span", "token_classifier", "choice"):
            yield _shown(hub.to_config(tiny_config(), {head: {}}, TASK))
        yield _shown(hub.to_config(tiny_config(), {"classifier": {}}, {"problem_type": "p"}))


def lines() -> Iterator[str]:
    """Yield what is recorded of each family."""
    for family in FAMILIES:
        yield f"## {family}"
        yield from _presets(family)
        if family in exportable():
            yield from _format(hub_of(family))


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
