"""Rendering of the report page from a run's nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cloze.core.figures import goodness, is_finite
from cloze.core.humanize import agree, format_count, format_duration, templates_in
from cloze.core.plugins import with_substitutes
from cloze.flows.graph import stages
from cloze.flows.graph.plan import run_of
from cloze.flows.report import plots
from cloze.flows.report.graph_picture import NodePicture, graph_svg
from cloze.flows.report.report_nodes import (
    BASELINES,
    REPLICATES,
    ReportNode,
    Score,
    SummaryTable,
    by_group,
    curves,
    grouped,
    scored_groups,
    scored_sections,
    scores_of,
)
from cloze.flows.report.section import SECTIONS

TEMPLATES = Path(__file__).parent / "templates"
MOST_ROWS = 60  # of the table of stages
MOST_PANELS = 3  # corpora and datasets shown with charts
MOST_CARDS = 4  # tasks with a metric at the top
MOST_CHARACTERS = 34  # per line of the graph picture

Card = tuple[str, str, str]  # value, label, remark


def render(
    nodes: Sequence[ReportNode],
    scores: Mapping[str, Mapping[str, Score]],
    masks: Sequence[Mapping[str, Any]],
    unfilled: int = 0,
    summary_tables: Sequence[SummaryTable] = (),
    figure: str = "",
) -> str:
    """Return the page as HTML.

    Args:
        scores: output of `cloze.flows.report.report_nodes.scores`.
        masks: entries with `node`, `text` and `candidates` (token, score, sequence).
        unfilled: number of checkpoints whose filled masks are not shown.
        figure: `<svg>` element below these tables; empty: none.
    """
    environment = templates_in(TEMPLATES)
    environment.filters |= {"si": format_count, "seconds": format_duration}
    drawn = {
        node.name: NodePicture(
            stage=node.stage, after=node.after, line=_short(stages.headline(node.manifest))
        )
        for node in nodes
    }
    by_stage = {stage: [node for node in nodes if node.stage == stage] for stage in stages.TABLE}
    created = max((node.manifest.created for node in nodes), default="")  # 2026-11-29T11:35:…
    packages: dict[str, str] = {}
    for node in nodes:
        packages |= node.manifest.packages
    config = {node.name: node.manifest.config for node in nodes[:MOST_ROWS]}
    pretrained, tuned, evaluated = (by_stage[name] for name in ("pretrain", "finetune", "evaluate"))
    histories = [node.history for node in pretrained if node.history]
    sections = _sections(nodes).items()
    return environment.get_template("report.html").render(
        nodes=[(node, stages.headline(node.manifest)) for node in nodes[:MOST_ROWS]],
        more=max(0, len(nodes) - MOST_ROWS),
        of=by_stage,
        vocabularies=[node for node in nodes if node.stage in with_substitutes(("vocab",))],
        corpora=[(node, _dropped(node)) for node in by_stage["corpus"][:MOST_PANELS]],
        datasets=[(node, _lengths(node)) for node in by_stage["dataset"][:MOST_PANELS]],
        losses=plots.losses(curves(nodes), _entropy(pretrained)) if histories else "",
        throughput=plots.throughput(histories[0]) if histories and len(pretrained) == 1 else "",
        tables=[_table(section, members) for section, members in sections if len(members) > 1],
        summary_tables=summary_tables,
        figure=figure,
        pictures=[
            picture
            for section in SECTIONS.loaded().values()
            if section.pictures is not None
            for picture in section.pictures(nodes)
        ],
        task=_task(tuned[0]) if len(tuned) == 1 else "",
        evaluated=evaluated[0].manifest.summary if len(evaluated) == 1 else None,
        graphs=[graph_svg(drawn, as_list=as_list) for as_list in (False, True)],
        cards=_cards(by_stage, scores),
        masks=[
            (name, [mask for mask in masks if mask["node"] == name])
            for name in dict.fromkeys(mask["node"] for mask in masks)
        ],
        unfilled=max(0, unfilled),
        config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=110),
        packages=sorted(packages.items()),
        created=f"{created[:16].replace('T', ' ')} UTC" if created else "",
        run=run_of(nodes[0].path) if nodes else "",
        execution=nodes[-1].manifest.execution if nodes else {},
    )


def _cards(
    of: Mapping[str, Sequence[ReportNode]], scores: Mapping[str, Mapping[str, Score]]
) -> list[Card]:
    """Return the metrics at the top of the page."""
    cards: list[Card] = []
    if of["corpus"]:
        corpus = of["corpus"][0].manifest.summary
        remark = f"{format_count(corpus['bytes'])}B of clean text"
        cards.append((f"{corpus['documents']:,}", "documents", remark))
    if of["dataset"]:
        dataset = of["dataset"][0].manifest.summary
        remark = agree(f"{dataset['rows']:,} rows × {dataset['copies']} masks")
        cards.append((format_count(dataset["tokens"]), "tokens read", remark))
    if of["pretrain"]:
        cards += _pretrain_cards(of["pretrain"])
    tuned = of["finetune"]
    if len(tuned) != 1:
        return cards + _task_cards(tuned, scores)
    metrics = tuned[0].scores
    name = next(iter(metrics), "")
    if not name:
        return cards
    baselines = [key for key in reversed(BASELINES) if key in metrics]
    remark = ", ".join(f"{key.replace('_', ' ')} {metrics[key]:.3f}" for key in baselines)
    task = str(tuned[0].manifest.config.get("task", ""))
    return [*cards, (f"{metrics[name]:.3f}", name, remark or task)]


def _task_cards(
    tuned: Sequence[ReportNode], scores: Mapping[str, Mapping[str, Score]]
) -> list[Card]:
    """Return a card per task, for the group with the best mean."""
    cards: list[Card] = []
    for task, members in list(grouped(tuned, lambda node: node.task).items())[:MOST_CARDS]:
        groups = [group for group, nodes in scored_groups(tuned).items() if nodes[0] in members]
        if not groups:
            continue
        metric = next(iter(scores[groups[0]]))
        group = max(groups, key=lambda group: goodness(scores[group][metric].mean, metric))
        score = scores[group][metric]
        label = " ".join(filter(None, (task, metric.replace("_", " "))))
        mean = f"mean of {score.n}: {score.format}, best {score.best_node}"
        cards.append((f"{score.mean:.3f}", label, mean if score.n > 1 else group))
    return cards


def _pretrain_cards(trained: Sequence[ReportNode]) -> list[Card]:
    """Return cards for the lowest held-out loss and for the last pretraining's speed."""
    cards: list[Card] = []
    measured = [node for node in trained if is_finite(node.manifest.summary["heldout_loss"])]
    if measured:
        best = min(measured, key=lambda node: float(node.manifest.summary["heldout_loss"]))
        summary = best.manifest.summary
        remark = "on rows that training never saw"
        if summary["unigram_entropy"] is not None:
            gain = summary["unigram_entropy"] - summary["heldout_loss"]
            remark = f"{abs(gain):.2f} {'below' if gain >= 0 else 'above'} the unigram entropy"
        if len(trained) > 1:
            remark = f"the lowest, {best.name}; {remark}"
        label = f"held-out {summary['objectives'][0].upper()} loss (nats)"
        cards.append((f"{summary['heldout_loss']:.3f}", label, remark))
    summary = trained[-1].manifest.summary
    speed, remark = summary["tokens_per_second"], f"{summary['steps']:,} steps"
    cards.append((format_count(speed), "tokens/s", f"{remark}, {summary['precision']}"))
    return cards


def _sections(nodes: Sequence[ReportNode]) -> dict[str, list[ReportNode]]:
    """Return the nodes with scores by section; sections of one group are listed by stage."""
    listed: dict[str, list[ReportNode]] = {}
    for section, members in scored_sections(nodes).items():
        key = section if len(by_group(members)) > 1 else members[0].stage
        listed.setdefault(key, []).extend(members)
    return listed


def _table(section: str, members: Sequence[ReportNode]) -> dict[str, Any]:
    """Return the table of a section: a row per group of replicates.

    A row has the first metric of each replicate, and mean, deviation and best of all metrics.
    Groups of several tasks, data or objectives are not compared: each row names its own metric.
    """
    groups = by_group(members)
    seeds = list(dict.fromkeys(_replicate(node) for node in members))
    metrics = list(dict.fromkeys(metric for node in members for metric in node.scores))
    has_several_tasks = len(set(map(_measured, members))) > 1
    rows, group_means = [], {}
    for group, replicates in groups.items():
        by_seed = {_replicate(node): next(iter(node.scores.values())) for node in replicates}
        group_scores, score = scores_of(replicates), next(iter(replicates[0].scores))
        group_means[group] = group_scores[score].mean
        rows.append(
            {
                "group": group,
                "score": f"{replicates[0].task} {score}".replace("_", " "),
                "each": [by_seed.get(seed) for seed in seeds] if len(seeds) > 1 else [],
                "means": [group_scores.get(metric) for metric in metrics],
                "best": group_scores[score],
            }
        )
    name = "score" if has_several_tasks else metrics[0].replace("_", " ")
    is_comparable = len(group_means) > 1 and not has_several_tasks
    return {
        "section": section,
        "first": name,
        "unlike": has_several_tasks,
        "seeds": seeds if len(seeds) > 1 else [],
        "metrics": [metric.replace("_", " ") for metric in metrics],
        "rows": rows,
        "best": max(group_means, key=lambda group: goodness(group_means[group], metrics[0]))
        if is_comparable
        else None,
        "plot": plots.bars(group_means, name) if is_comparable else "",
    }


def _measured(node: ReportNode) -> tuple[str, str | None, str]:
    """Return what nodes with comparable scores share."""
    manifest = node.manifest
    return node.task, manifest.parents.get("data"), str(manifest.summary.get("objectives"))


def _replicate(node: ReportNode) -> str:
    return ", ".join(
        f"{axis} {value}" for axis, value in node.placement.values.items() if axis in REPLICATES
    )


def _short(line: str) -> str:
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1].rstrip(' ,;')}…"


def _entropy(trained: Sequence[ReportNode]) -> float | None:
    """Return the unigram entropy of the held-out targets if all trainings have the same."""
    entropies = {node.manifest.summary.get("unigram_entropy") for node in trained}
    return entropies.pop() if len(entropies) == 1 else None


def _lengths(node: ReportNode) -> str:
    summary = node.manifest.summary
    return plots.lengths(summary["length_histogram"], summary["length"])


def _task(node: ReportNode) -> str:
    metrics = node.scores
    score = next(iter(metrics), "")
    shown = {key: value for key, value in metrics.items() if key == score or key in BASELINES}
    if len(shown) < 2:
        return ""
    colours = {
        key.replace("_", " "): plots.MUTED if key == "from_scratch" else "#cbd2d9"
        for key in BASELINES
    }
    values = {key.replace("_", " "): value for key, value in shown.items()}
    return plots.bars(values, f"{score.replace('_', ' ')} on dev", colours)


def _dropped(node: ReportNode) -> list[str]:
    """Return charts of the corpus counters for dropped and quarantined text, largest first."""
    figures = []
    for kind, unit in (
        ("dropped", "documents"),
        ("dropped_lines", "lines and paragraphs"),
        ("quarantined", "quarantined"),
    ):
        counts = {
            key.removeprefix(f"{kind}/").replace("_", " "): count
            for key, count in node.manifest.counters.items()
            if key.startswith(f"{kind}/") and count
        }
        if counts:
            largest = sorted(counts.items(), key=lambda item: -item[1])[:14]
            figures.append(plots.bars(dict(largest), unit))
    return figures
