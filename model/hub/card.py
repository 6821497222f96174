"""The model card that an exported directory carries: what the model is, what it was trained on, how to use it."""

from __future__ import annotations

from model.checkpoint import Loaded

_PRETRAINED_USE = """```python
from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/directory")
fill("The capital of France is [MASK].")
```"""

_CLASSIFIER_USE = """```python
from transformers import pipeline

classify = pipeline("text-classification", model="path/to/this/directory")
classify("A pleasure from the first page to the last.")
```"""


def model_card(loaded: Loaded, architecture: str) -> str:
    """Markdown with the Hub's YAML header. It depends on the checkpoint's content alone, not on time or place."""
    model, dataset, task = loaded.model, loaded.dataset, loaded.task
    parameters = sum(tensor.numel() for tensor in loaded.state.values())
    facts = [
        ("Class", f"`{architecture}`"),
        ("Parameters", f"{parameters:,}"),
        ("Layers, width, heads", f"{model.num_hidden_layers}, {model.hidden_size}, {model.num_attention_heads}"),
        ("Vocabulary", f"{model.vocab_size:,} pieces"),
        ("Longest input", f"{model.max_position_embeddings} pieces"),
    ]
    if dataset is not None:
        pair = f", sentence pairs ({dataset.pair_task})" if dataset.pair_task else ""
        facts.append(("Pretraining data", f"recipe `{dataset.recipe}`, rows of {dataset.length} pieces{pair}"))
    if task is not None:
        facts.append(("Fine-tuned for", f"`{task['name']}`: " + ", ".join(f"`{label}`" for label in task["labels"])))
    facts.append(("Fine-tuning steps" if task is not None else "Pretraining steps", f"{loaded.step:,}"))
    tag = "text-classification" if task is not None else "fill-mask"
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {tag}",
        f"tags: [{model.family}, cloze]",
        "---",
        "",
        f"# {model.family}, {model.num_hidden_layers} layers of {model.hidden_size}",
        "",
        "Trained and exported with Cloze.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts),
        "",
        _CLASSIFIER_USE if task is not None else _PRETRAINED_USE,
    ]
    return "\n".join(lines) + "\n"
