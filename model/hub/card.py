"""The card of an exported model: usage, training, text, scores with seeds, licence, limits."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cloze.core import storage
from cloze.core.artifacts.artifact import Manifest, find_manifest
from cloze.core.artifacts.lineage import directories_in, finished_ancestors
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.families.hub_format import EMBEDDING, task_head
from cloze.model.families.hub_formats import hub_of
from cloze.pipeline import tokenizer

CORPUS_CARD, UNKNOWN = "card.json", "unknown"  # see `cloze.pipeline.corpus.card`

_USES = Path(__file__).parent / "templates" / "uses.md"  # by pipeline tag
_TAGS = {  # pipeline tag of the Hub by head
    "classifier": "text-classification",
    "span": "question-answering",
    "token_classifier": "token-classification",
    "choice": "multiple-choice",
    EMBEDDING: "sentence-similarity",
    "lm": "text-generation",
    "seq2seq": "text2text-generation",
}


# Rows of the table of a training: key in the manifest's config or summary -> name.
_TRAINING = {
    "objectives": "Objectives",
    "task": "Task",
    "data_licences": "Licence of its data",
    "steps": "Steps",
    "epochs": "Epochs",
    "tokens": "Tokens, without padding",
    "words_seen": "Words seen",
    "global_batch": "Sequences per step",
    "optimizer": "Optimizer",
    "learning_rate": "Peak learning rate",
    "schedule": "Schedule",
    "weight_decay": "Weight decay",
    "dropout": "Dropout",
    "seed": "Seed",
    "precision": "Precision",
    "heldout_loss": "Held-out loss, nats per predicted token",
    "training_flops": "Model FLOPs",
    "world_size": "Processes",
    "gpu_hours": "GPU-hours",
    "cpu_hours": "Core-hours",
}
_MOST_ORIGINS = 20
_SMALLEST_SHARE = 0.01  # of a language that the header names


def model_card(loaded: LoadedCheckpoint, architecture: str) -> str:
    """Return the card of an export: Markdown with the Hub's YAML header.

    What the text was, how the model was trained and how it scored come from the manifests of the
    artifacts that the checkpoint was made from, as far as they are near it.
    """
    lineage = finished_ancestors(loaded.path)
    corpora = corpus_cards(lineage)
    model = loaded.model
    tag, use = _use(loaded, architecture)
    languages, tasks = languages_of(corpora), _task_licences(lineage)
    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": tag,
        **({"language": languages} if languages else {}),
        **licence_of(corpora, tasks),
        "tags": [model.family, "cloze"],
    }
    if loaded.heads.get(EMBEDDING):
        header["library_name"] = "sentence-transformers"
    if tag == "fill-mask":
        pieces = tokenizer.load(loaded.tokenizer)
        header["mask_token"] = pieces.backend.id_to_token(pieces.special.mask)
    results = _results(lineage)
    if results:
        header["model-index"] = [{"name": model.family, "results": results}]
    sections = [
        f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---",
        f"# {model.family}, {model.num_hidden_layers} layers of {model.hidden_size}",
        "Trained and exported with Cloze.",
        _table(("", ""), _facts(loaded, architecture).items()),
        use,
        *_training(lineage),
        *text_sections(lineage, corpora),
        "## Limits",
        "\n".join(
            f"- {limit}" for limit in _limits(loaded, languages, corpora, tasks, bool(results))
        ),
    ]
    return "\n\n".join(sections) + "\n"


def corpus_cards(lineage: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """Return the content of `card.json` of each corpus among the artifacts."""
    paths = (storage.join(directory, CORPUS_CARD) for directory in lineage)
    return [storage.read_json(path) for path in paths if storage.exists(path)]


def _use(loaded: LoadedCheckpoint, architecture: str) -> tuple[str, str]:
    """Return the pipeline tag and the usage example."""
    head = task_head(loaded.heads)
    head = next((name for name in ("lm", "seq2seq") if name in loaded.heads), head)
    if architecture.endswith("ForCausalLM"):
        head = "lm"
    if loaded.heads.get(EMBEDDING):
        head = EMBEDDING
    # The encoder's own is for such as ELECTRA, which has no masked LM head.
    usual = "fill-mask" if architecture.endswith("ForMaskedLM") else "feature-extraction"
    tag = _TAGS.get(head or "", usual)
    text = _USES.read_text(encoding="utf-8")
    return tag, text.partition(f"## {tag}\n\n")[2].partition("\n\n## ")[0].strip()


def _facts(loaded: LoadedCheckpoint, architecture: str) -> dict[str, str]:
    model, dataset, task = loaded.model, loaded.dataset, loaded.task
    exported = hub_of(model.family, loaded.heads).exported(loaded.state, loaded.heads)
    sizes = model.num_hidden_layers, model.hidden_size, model.num_attention_heads
    facts = {
        "Class": f"`{architecture}`",
        "Parameters": f"{sum(tensor.numel() for tensor in exported.values()):,}",
        "Layers, width, heads": ", ".join(map(str, sizes)),
        "Vocabulary": f"{model.vocab_size:,} pieces",
        "Longest input": f"{model.max_position_embeddings} pieces",
    }
    if dataset is not None:
        pair = f", sentence pairs ({dataset.pair_task})" if dataset.pair_task else ""
        rows = f"rows of {dataset.length} pieces{pair}"
        facts["Pretraining data"] = f"recipe `{dataset.recipe}`, {rows}"
    if loaded.datasets:
        facts["Mixed from"] = "; ".join(
            f"`{entry['name']}` {entry['share']:.1%}, {entry['rows']:,} rows, "
            f"{entry['epochs']:.2f} epochs"
            for entry in loaded.datasets
        )
    if task is not None:
        labels = ", ".join(f"`{label}`" for label in task.get("labels") or ())
        facts["Fine-tuned for"] = f"`{task['name']}`" + (f": {labels}" if labels else "")
    facts["Pretraining steps" if task is None else "Fine-tuning steps"] = f"{loaded.step:,}"
    return facts


def _training(lineage: Mapping[str, Manifest]) -> Iterator[str]:
    """Yield a section for each training, the last one first."""
    for manifest in lineage.values():
        values = {**manifest.config, **manifest.summary}
        if begun := values.get("begun_at"):  # the phase's own numbers, as those of its cost
            values |= {"steps": values["steps"] - begun, "tokens": manifest.tokens}
        rows = [(name, _value(values[key])) for key, name in _TRAINING.items() if values.get(key)]
        if manifest.stage in ("pretrain", "finetune"):
            yield f"## {'Pretraining' if manifest.stage == 'pretrain' else 'Fine-tuning'}"
            yield _table(("", ""), [("Artifact", f"`{manifest.fingerprint[:12]}`"), *rows])


def text_sections(
    lineage: Mapping[str, Manifest], corpora: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the section of the training text: datasets, and documents by origin."""
    datasets = [manifest for manifest in lineage.values() if manifest.stage == "dataset"]
    if not datasets and not corpora:
        return
    yield "## Training text"
    if datasets:
        yield "\n".join(
            f"- dataset `{manifest.fingerprint[:12]}`: {manifest.summary.get('documents', 0):,} "
            f"documents, {manifest.rows:,} rows, {manifest.tokens:,} tokens"
            for manifest in datasets
        )
    origins = [origin for corpus in corpora for origin in corpus["origins"]]
    origins.sort(key=lambda origin: -origin["words"])
    rows = [
        (
            " ".join(filter(None, (origin["name"] or origin["kind"], origin["date"]))),
            origin["url"],
            origin["licence"] or UNKNOWN,
            f"{origin['documents']:,}",
            f"{origin['words']:,}",
        )
        for origin in origins[:_MOST_ORIGINS]
    ]
    if rows:
        yield _table(("origin", "address", "licence", "documents", "words"), rows)
    if len(origins) > len(rows):
        yield f"And {len(origins) - len(rows)} smaller origins."


def _task_licences(lineage: Mapping[str, Manifest]) -> list[str]:
    """Return the licence of each file set that a task was learned from."""
    tuned = (manifest.summary for manifest in lineage.values() if manifest.stage == "finetune")
    return [name for summary in tuned for name in summary.get("data_licences", [UNKNOWN])]


def licence_of(corpora: Sequence[Mapping[str, Any]], tasks: Iterable[str] = ()) -> dict[str, str]:
    """Return the header's licence: that of all documents and tasks, if it is one and is known."""
    names = {entry["licence"] for corpus in corpora for entry in corpus["licences"]}
    if not names or UNKNOWN in (names := names.union(tasks)):
        return {}
    if len(names) == 1:
        return {"license": names.pop().lower()}
    return {"license": "other", "license_name": "see-training-text"}


def languages_of(corpora: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the codes of the languages of at least 1 % of the documents, the most first."""
    shares = Counter[str]()
    for corpus in corpora:
        shares.update(corpus["languages"]["shares"])
    known = [name for name, share in shares.most_common() if share >= _SMALLEST_SHARE]
    return [name for name in known if name.isascii() and name.isalpha() and len(name) <= 3]


def _results(lineage: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """Return the scores of the fine-tuning, and of those beside it that differ only by seed."""
    directory, tuned = next(iter(lineage.items()), ("", None))
    if tuned is None or tuned.stage != "finetune":
        return []
    results = []
    for path in directories_in(posixpath.dirname(directory)):
        other = find_manifest(path)
        if other is None or (other.stage, other.parents) != (tuned.stage, tuned.parents):
            continue
        if {**other.config, "seed": 0} != {**tuned.config, "seed": 0}:
            continue
        task = str(other.summary["task"])
        metrics = [
            {"type": name, "name": f"{name}, seed {other.config['seed']}", "value": round(value, 4)}
            for name, value in other.summary["metrics"].items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        dataset = {"name": task, "type": task, "split": "dev"}
        results.append(
            {"task": {"type": task, "name": task}, "dataset": dataset, "metrics": metrics}
        )
    return results


def _limits(
    loaded: LoadedCheckpoint,
    languages: Sequence[str],
    corpora: Sequence[Mapping[str, Any]],
    tasks: Sequence[str],
    has_results: bool,
) -> Iterator[str]:
    yield f"An input has at most {loaded.model.max_position_embeddings} pieces."
    if languages:
        yield f"The text is in {', '.join(languages)}; the model has not learned other languages."
    else:
        yield "The languages of the training text are not recorded here."
    documents = sum(corpus["totals"]["documents"] for corpus in corpora)
    unknown = sum(
        entry["documents"]
        for corpus in corpora
        for entry in corpus["licences"]
        if entry["licence"] == UNKNOWN
    )
    if unknown:
        yield f"The licence of {unknown:,} of {documents:,} documents is unknown."
    if UNKNOWN in tasks:
        yield f"The licence of {tasks.count(UNKNOWN)} of {len(tasks)} tasks' data is unknown."
    if loaded.task is None:
        yield "The model is pretrained alone; most uses need fine-tuning."
    if has_results:
        yield "The scores are of the development split."
    yield "Social biases and errors of the training text were not measured; expect them in answers."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _value(value: Any) -> str:
    """Return a value of a manifest as text: counts with commas, lists with commas between."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and value < 1e10 else f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
