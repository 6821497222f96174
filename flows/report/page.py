"""From a run's manifests to the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.graph import stages
from flows.report import plots
from pipeline.core.artifact import Manifest
from pipeline.core.humanize import duration, si
from pipeline.core.pages import templates_in

TEMPLATES = Path(__file__).parent / "templates"


def render(manifests: Mapping[str, Manifest], history: Sequence[Mapping[str, Any]], masks: Sequence[Mapping[str, Any]]) -> str:
    """The page as HTML.

    Args:
        manifests: by stage.
        history: the lines of the trainer's metrics.jsonl.
        masks: `text` and its `candidates` (token, score, sequence).
    """
    environment = templates_in(TEMPLATES)
    environment.filters |= {"si": si, "seconds": duration}
    summaries = {name: manifest.summary for name, manifest in manifests.items()}
    present = [name for name in stages.TABLE if name in manifests]
    config = {name: manifests[name].config for name in present}
    packages: dict[str, str] = {}
    for name in present:
        packages |= manifests[name].packages
    return environment.get_template("report.html").render(
        stages=[(name, manifests[name], stages.headline(manifests[name])) for name in present],
        s=summaries,
        cards=_cards(manifests),
        figures=_figures(manifests, history),
        masks=masks,
        config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=110),
        packages=sorted(packages.items()),
        created=max((manifests[name].created for name in present), default=""),
        execution=manifests[present[-1]].execution if present else {},
    )


def _cards(manifests: Mapping[str, Manifest]) -> list[tuple[str, str, str]]:
    """(value, label, remark) of the figures at the top."""
    cards: list[tuple[str, str, str]] = []
    if "corpus" in manifests:
        corpus = manifests["corpus"].summary
        cards.append((f"{corpus['documents']:,}", "documents", f"{si(corpus['bytes'])}B of clean text"))
    if "dataset" in manifests:
        dataset = manifests["dataset"].summary
        cards.append((si(dataset["tokens"]), "tokens read", f"{dataset['rows']:,} rows × {dataset['copies']} masks"))
    if "pretrain" in manifests:
        pretrain = manifests["pretrain"].summary
        if pretrain["heldout_loss"] is not None:
            name = pretrain["objectives"][0].upper()
            remark = "on rows that training never saw"
            if pretrain["unigram_entropy"] is not None:
                gain = pretrain["unigram_entropy"] - pretrain["heldout_loss"]
                remark = f"{abs(gain):.2f} {'below' if gain >= 0 else 'above'} the unigram entropy"
            cards.append((f"{pretrain['heldout_loss']:.3f}", f"held-out {name} loss (nats)", remark))
        cards.append((si(pretrain["tokens_per_second"]), "tokens/s", f"{pretrain['steps']:,} steps, {pretrain['precision']}"))
    if "finetune" in manifests:
        metrics = manifests["finetune"].summary["metrics"]
        name = next(iter(metrics))
        remark = ", ".join(
            f"{key.replace('_', ' ')} {metrics[key]:.3f}" for key in ("from_scratch", "majority") if key in metrics
        )
        cards.append((f"{metrics[name]:.3f}", name, remark or str(manifests["finetune"].config.get("task", ""))))
    return cards


def _figures(manifests: Mapping[str, Manifest], history: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    figures: dict[str, str] = {}
    for kind, unit in (("dropped", "documents"), ("dropped_lines", "lines and paragraphs"), ("quarantined", "quarantined")):
        counts = _drops(manifests, kind)
        if counts:
            figures[kind] = plots.bars(dict(counts[:14]), unit)
    if "dataset" in manifests:
        dataset = manifests["dataset"].summary
        figures["lengths"] = plots.lengths(dataset["length_histogram"], dataset["length"])
    if "pretrain" in manifests and history:
        figures["loss"] = plots.loss(
            history, manifests["pretrain"].summary.get("unigram_entropy"), manifests["pretrain"].summary["objectives"][0]
        )
        figures["throughput"] = plots.throughput(history)
    if "finetune" in manifests:
        metrics = manifests["finetune"].summary["metrics"]
        shown = {
            key.replace("_", " "): value for key, value in metrics.items() if key in ("accuracy", "from_scratch", "majority")
        }
        if len(shown) > 1:
            figures["task"] = plots.bars(shown, "accuracy on dev", {"from scratch": plots.MUTED, "majority": "#cbd2d9"})
    return figures


def _drops(manifests: Mapping[str, Manifest], kind: str) -> list[tuple[str, int]]:
    """What the corpus stage counted under `kind/…`, most first."""
    if "corpus" not in manifests:
        return []
    counters = manifests["corpus"].counters
    found = [
        (key.removeprefix(f"{kind}/").replace("_", " "), n) for key, n in counters.items() if key.startswith(f"{kind}/") and n
    ]
    return sorted(found, key=lambda item: -item[1])
