"""The model card of an exported directory: model, training data and usage."""

from __future__ import annotations

from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.families.hub_format import EMBEDDING, hub_of, task_head

_PRETRAINED_USE = """```python
from transformers import pipeline

fill = pipeline("fill-mask", model="path/to/this/directory")
fill(f"The capital of France is {fill.tokenizer.mask_token}.")
```"""

_ENCODER_USE = """```python
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/directory")
encoder = AutoModel.from_pretrained("path/to/this/directory")
encoder(**tokenizer("A sentence.", return_tensors="pt")).last_hidden_state  # to be fine-tuned
```"""

_CLASSIFIER_USE = """```python
from transformers import pipeline

classify = pipeline("text-classification", model="path/to/this/directory")
classify("A pleasure from the first page to the last.")
```"""

_ANSWER_USE = """```python
from transformers import pipeline

answer = pipeline("question-answering", model="path/to/this/directory")
answer(question="When was it founded?", context="The town was founded in 1312.")
```"""

_TAG_USE = """```python
from transformers import pipeline

tag = pipeline("token-classification", model="path/to/this/directory", aggregation_strategy="first")
tag("Ada Lovelace was born in London.")
```"""

_CHOICE_USE = """```python
from transformers import AutoModelForMultipleChoice, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/directory")
model = AutoModelForMultipleChoice.from_pretrained("path/to/this/directory")
endings = ["the door.", "the moon."]
batch = tokenizer(["She opened"] * len(endings), endings, padding=True, return_tensors="pt")
model(**{name: tensor[None] for name, tensor in batch.items()}).logits
```"""

_EMBED_USE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/directory")
model.similarity(model.encode(["A sentence."]), model.encode(["Another one."]))
```"""

_GENERATE_USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/directory")
model = AutoModelForCausalLM.from_pretrained("path/to/this/directory")
ids = tokenizer("Once upon a time", return_tensors="pt").input_ids[:, :-1]  # no end token
tokenizer.decode(model.generate(ids, max_new_tokens=40)[0], skip_special_tokens=True)
```"""

_USES = {  # pipeline tag of the Hub and usage example, by head
    "classifier": ("text-classification", _CLASSIFIER_USE),
    "span": ("question-answering", _ANSWER_USE),
    "token_classifier": ("token-classification", _TAG_USE),
    "choice": ("multiple-choice", _CHOICE_USE),
    EMBEDDING: ("sentence-similarity", _EMBED_USE),
    "lm": ("text-generation", _GENERATE_USE),
}


def model_card(loaded: LoadedCheckpoint, architecture: str) -> str:
    """Return Markdown with the Hub's YAML header; it depends on the checkpoint's content alone."""
    model, dataset, task = loaded.model, loaded.dataset, loaded.task
    exported = hub_of(model.family).exported(loaded.state, loaded.heads)
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
    own_heads = [head for head in (EMBEDDING, "lm") if head in loaded.heads]
    head = own_heads[0] if own_heads else task_head(loaded.heads)
    masked = ("fill-mask", _PRETRAINED_USE)
    encoder = ("feature-extraction", _ENCODER_USE)  # such as ELECTRA, which has no masked LM head
    tag, use = _USES.get(head or "", masked if architecture.endswith("ForMaskedLM") else encoder)
    lines = [
        "---",
        f"library_name: {'sentence-transformers' if head == EMBEDDING else 'transformers'}",
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
        *(f"| {name} | {value} |" for name, value in facts.items()),
        "",
        use,
    ]
    return "\n".join(lines) + "\n"
