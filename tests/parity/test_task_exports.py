"""Fine-tuned checkpoints of every family and every head: transformers opens the export and says the
same, and it comes back as it was.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.families.hub_formats import exportable, hub_of
from cloze.model.families.models import new_backbone
from cloze.model.hub.read import import_directory
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.tasks.heads import SequenceClassifier, TokenClassifier
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tensors import read_tensors, write_tensors
from tests.parity.families import FORWARD, Case, batch_of, their_inputs, transformers
from tests.slices import few
from tests.tiny_models import tiny_config, write_tokenizer

TAGS = ["O", "B-PER", "I-PER"]
# head of the checkpoint, number of outputs, meaning, the class of transformers that opens it
HEADS: dict[str, tuple[str, int, dict[str, Any], str]] = {
    "labels": ("classifier", 3, {"labels": ["a", "b", "c"]}, "AutoModelForSequenceClassification"),
    "number": ("classifier", 1, {"mean": 2.5}, "AutoModelForSequenceClassification"),
    "span": ("span", 2, {}, "AutoModelForQuestionAnswering"),
    "tags": (
        "token_classifier",
        3,
        {"labels": TAGS, "scheme": "IOB1"},
        "AutoModelForTokenClassification",
    ),
    "choice": ("choice", 1, {"labels": ["0", "1"]}, "AutoModelForMultipleChoice"),
}
REFUSED = {
    **{("longformer", kind): "global" for kind in ("tags", "choice")},
    ("longformer", "span"): "puts 2 separators into a row",  # tests/parity/test_longformer.py
    ("gpt2", "choice"): "chooses by the last token",
    **{("ltr", kind): "have no Hugging Face class" for kind in HEADS},
    **{("bart", kind): "no such class that reads the decoder" for kind in ("tags", "choice")},
    **{
        (family, kind): "no such class that reads the decoder"
        for family in ("t5", "transformer")
        for kind in HEADS
    },
}
each_kind = pytest.mark.parametrize("kind", HEADS)
each_family = pytest.mark.parametrize("family", exportable())


class Choosing(nn.Module):
    """The network of the kind multiple choice, as far as a checkpoint holds it."""

    def __init__(self, family: str) -> None:
        super().__init__()
        config = tiny_config(family=family)
        self.encoder, self.pooler = new_backbone(config)
        self.choice = nn.Linear(config.hidden_size, 1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        hidden = self.encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
        logits: Tensor = self.choice(self.pooler(hidden, batch["attention_mask"]))
        return logits


def network(family: str, kind: str, **changes: Any) -> nn.Module:
    """Ours, with random weights everywhere."""
    head, outputs, _, _ = HEADS[kind]
    torch.manual_seed(3)
    config = tiny_config(family=family, **changes)
    made: nn.Module
    if head == "classifier":
        made = SequenceClassifier(*new_backbone(config), config.hidden_size, outputs, 0.0)
    elif head == "choice":
        made = Choosing(family)
    else:
        made = TokenClassifier(new_backbone(config), config.hidden_size, outputs, 0.0, head)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made.eval()


def fine_tuned(model: nn.Module, family: str, kind: str, base: Path, **changes: Any) -> str:
    head, outputs, meaning, _ = HEADS[kind]
    checkpoint.save_weights(
        str(base / "checkpoint"),
        model=tiny_config(family=family, **changes),
        state=model.state_dict(),
        tokenizer=write_tokenizer(base / "scratch"),
        heads={head: {"num_labels": outputs} if "classifier" in head else {}},
        task={"name": "any", "options": {}, "max_length": 16, **meaning},
        step=9,
    )
    checkpoint.finalize(str(base / "checkpoint"))
    return str(base / "checkpoint")


def their_logits(theirs: Any, batch: dict[str, Tensor], kind: str) -> Tensor:
    inputs = their_inputs(theirs, batch)
    if kind == "choice":
        found: Tensor = theirs(**{name: tensor[None] for name, tensor in inputs.items()}).logits
        return found.transpose(0, 1)
    outputs = theirs(**inputs)
    return (
        torch.stack([outputs.start_logits, outputs.end_logits], -1)
        if kind == "span"
        else outputs.logits
    )


# a number is a label's network with another config; SpanBERT is BERT but for its pretraining
PAIRS = [
    (family, kind)
    for family in exportable()
    for kind in HEADS
    if (kind != "number" or family in ("bert", "electra"))
    and (family != "spanbert" or kind == "span")
]


@pytest.mark.parametrize(
    ("family", "kind"),
    few(
        [pytest.param(*pair, id="-".join(pair)) for pair in PAIRS],
        *("-".join(pair) for pair in PAIRS if pair[0] == "bert" or pair[1] in ("span", "choice")),
    ),
)
def test_a_fine_tuned_checkpoint_goes_there_and_back(
    family: str, kind: str, tmp_path: Path
) -> None:
    there_and_back(family, kind, tmp_path)


def test_a_classifier_on_the_mean_of_all_states_goes_there_and_back(tmp_path: Path) -> None:
    there_and_back("modern", "labels", tmp_path, classifier_pooling="mean")
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert config["classifier_pooling"] == "mean"
    first, mean = (
        network("modern", "labels"),
        network("modern", "labels", classifier_pooling="mean"),
    )
    batch = batch_of(Case(family="modern"), 3, 21)
    with torch.inference_mode():
        assert not torch.allclose(first(batch), mean(batch), atol=1e-2)
        batch["input_ids"][~batch["attention_mask"]] = 7  # what fills a row up takes no part
        torch.testing.assert_close(
            mean(batch)[0], mean({name: row[:1] for name, row in batch.items()})[0]
        )


def there_and_back(family: str, kind: str, tmp_path: Path, **changes: Any) -> None:
    ours = network(family, kind, **changes)
    directory, hub = fine_tuned(ours, family, kind, tmp_path, **changes), str(tmp_path / "hub")
    if (family, kind) in REFUSED:
        with pytest.raises(DataError, match=REFUSED[family, kind]):
            execute(EXPORT, ExportConfig(), {"checkpoint": directory}, hub)
        return
    summary = execute(EXPORT, ExportConfig(), {"checkpoint": directory}, hub).manifest.summary
    assert 0 <= summary["max_logit_difference"] <= 1e-5
    _, outputs, meaning, auto = HEADS[kind]
    theirs, info = getattr(transformers, auto).from_pretrained(
        hub, local_files_only=True, output_loading_info=True
    )
    assert not info["missing_keys"] | info["unexpected_keys"]
    batch = batch_of(Case(family=family), 3, 21)
    with torch.inference_mode():
        mine, its = ours(batch), their_logits(theirs.eval(), batch, kind)
    real = batch["attention_mask"]
    per_token = mine.ndim == 3
    torch.testing.assert_close(
        mine[real] if per_token else mine, its[real] if per_token else its, **FORWARD
    )
    assert mine.std() > 0.05  # else equal means nothing
    if kind in ("labels", "tags"):
        assert [theirs.config.id2label[number] for number in range(outputs)] == meaning["labels"]
        assert theirs.config.problem_type is None
    if kind == "number":
        assert (theirs.config.num_labels, theirs.config.problem_type) == (1, "regression")
    import_directory(hub, str(tmp_path / "back"), family=family)
    before, after = checkpoint.load(directory), checkpoint.load(str(tmp_path / "back"))
    assert (after.model, after.heads, after.task) == (before.model, before.heads, before.task)
    assert after.state.keys() == before.state.keys()
    assert all(after.state[name].equal(tensor) for name, tensor in before.state.items())


@each_kind
def test_another_ones_model_is_imported_by_its_class(kind: str, tmp_path: Path) -> None:
    """Saved by transformers, with a pooler that heads on every position have no use for, and
    without a word of ours.
    """
    head, outputs, meaning, auto = HEADS[kind]
    names = dict(enumerate(meaning["labels"])) if kind in ("labels", "tags") else None
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "vocab_size": 50,
    }
    config = transformers.BertConfig(
        **shape, **({"id2label": names} if names else {"num_labels": outputs})
    )
    made = getattr(transformers, auto).from_config(config)
    extra = (
        {}
        if head in ("classifier", "choice")
        else {"bert.pooler.dense.weight": torch.zeros(16, 16)}
    )
    made.save_pretrained(str(tmp_path / "hub"), state_dict={**made.state_dict(), **extra})
    checkpoint.copy_files(write_tokenizer(tmp_path / "scratch"), str(tmp_path / "hub"))
    found = import_directory(str(tmp_path / "hub"), str(tmp_path / "checkpoint"))
    assert set(found.heads) == {head}
    assert found.state[f"{head}.weight"].equal(
        dict(made.named_parameters())[f"{'qa_outputs' if kind == 'span' else 'classifier'}.weight"]
    )
    assert found.left_out == tuple(extra)
    assert found.task is not None
    assert found.task.get("labels") == (meaning["labels"] if names else None)
    FinetunedModel(str(tmp_path / "checkpoint"))  # the verbs know what to do with it


def test_a_part_of_a_fine_tuned_model_is_refused(tmp_path: Path) -> None:
    directory = fine_tuned(network("bert", "choice"), "bert", "choice", tmp_path)
    hub = tmp_path / "hub"
    execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(hub))
    weights = read_tensors(str(hub / checkpoint.WEIGHTS))
    for missing, told in (
        ("classifier.bias", "lacks choice.bias"),
        ("bert.pooler.dense.", "lacks the pooler"),
    ):
        kept = {name: tensor for name, tensor in weights.items() if not name.startswith(missing)}
        write_tensors(str(hub / checkpoint.WEIGHTS), kept)
        with pytest.raises(DataError, match=re.escape(told)):
            import_directory(str(hub), str(tmp_path / "back"))


@each_family
def test_a_model_of_vectors_is_the_encoder_alone(family: str, tmp_path: Path) -> None:
    """The pooler, which vectors do without, stays behind."""
    backbone = new_backbone(tiny_config(family=family))
    state = nn.ModuleDict({"encoder": backbone.encoder, "pooler": backbone.pooler}).state_dict()
    checkpoint.save_weights(
        str(tmp_path / "checkpoint"),
        model=tiny_config(family=family),
        state=state,
        tokenizer=write_tokenizer(tmp_path / "scratch"),
        heads={"embedding": {"pooling": "mean", "normalize": True}},
        task={"name": "any"},
    )
    checkpoint.finalize(str(tmp_path / "checkpoint"))
    hub = str(tmp_path / "hub")
    if family in ("longformer", "ltr") or tiny_config(family=family).is_encoder_decoder:
        with pytest.raises(DataError, match="Hugging Face"):
            execute(EXPORT, ExportConfig(), {"checkpoint": str(tmp_path / "checkpoint")}, hub)
        return
    summary = execute(
        EXPORT, ExportConfig(), {"checkpoint": str(tmp_path / "checkpoint")}, hub
    ).manifest.summary
    assert 0 <= summary["max_logit_difference"] <= 1e-5
    theirs = transformers.AutoModel.from_pretrained(hub, local_files_only=True).eval()
    batch = batch_of(Case(family=family), 3, 21)
    real = batch["attention_mask"]
    with torch.inference_mode():
        mine = backbone.encoder.eval()(batch["input_ids"], real, batch["token_type_ids"])
        torch.testing.assert_close(
            mine[real], theirs(**their_inputs(theirs, batch)).last_hidden_state[real], **FORWARD
        )


def test_every_family_says_of_every_head_whether_it_is_exported() -> None:
    classes = {head for head, *_ in HEADS.values()}
    for family in exportable():
        hub = hub_of(family)
        told = {head for heads in hub.architectures for head in heads} | hub.refused.keys()
        assert family == "ltr" or classes <= told
