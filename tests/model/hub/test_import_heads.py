"""Heads of models that are imported: which are new, and that those neither answer nor leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import execute
from cloze.labs.embed import EmbeddingPipeline
from cloze.model import checkpoint
from cloze.model.families.registry import FAMILIES
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.objectives import still_untrained
from cloze.model.tensors import read_tensors
from cloze.model.use.fill_mask import FillMaskPipeline
from cloze.model.use.scorer import SentenceScorer
from tests.model.hub.test_import_forms import SIZES, imported, saved, seeded, transformers
from tests.tiny_models import PIECES, write_checkpoint

WITHOUT_HEAD = [
    ("BertModel", ["masked_lm", "pair"], "BertModel"),
    ("BertForMaskedLM", ["pair", "pooler"], "BertForMaskedLM"),
    ("BertForNextSentencePrediction", ["masked_lm"], "BertForNextSentencePrediction"),
]


@pytest.mark.parametrize(("name", "new", "exported"), WITHOUT_HEAD)
def test_a_head_that_was_never_trained_neither_answers_nor_leaves(
    name: str, new: list[str], exported: str, tmp_path: Path
) -> None:
    model = seeded(lambda: getattr(transformers, name)(transformers.BertConfig(**SIZES)))
    directory, out = saved(model, tmp_path / "hub"), tmp_path / "out"
    summary = imported(directory, out)
    assert summary["initialized"] == new
    assert "hidden" in summary["compared"]
    assert summary["max_logit_difference"] < 1e-5
    if "masked_lm" in new:
        for use in (FillMaskPipeline, SentenceScorer):
            with pytest.raises(UsageError, match="masked_lm of .* was never trained"):
                use(str(out))
    else:
        FillMaskPipeline(str(out))
        with pytest.raises(UsageError, match="pooler of .* was never trained"):
            EmbeddingPipeline(str(out), pooling="pooler")
    made = execute(EXPORT, ExportConfig(), {"checkpoint": str(out)}, str(tmp_path / "back"))
    assert made.manifest.summary["architecture"] == exported
    assert made.manifest.summary["left_out"] == new
    theirs, back = (
        read_tensors(f"{path}/model.safetensors") for path in (directory, tmp_path / "back")
    )
    prefixed = {n if n.startswith(("bert.", "cls.")) else f"bert.{n}": t for n, t in theirs.items()}
    assert back.keys() == prefixed.keys()
    assert all(tensor.equal(prefixed[n]) for n, tensor in back.items())


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_checkpoint_says_which_heads_are_new(family: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "own", tmp_path / "pieces", family=family)
    assert not checkpoint.load(path).untrained
    loaded = checkpoint.load(path)
    head = next(iter(loaded.heads))
    checkpoint.save_weights(
        str(tmp_path / "marked"),
        model=loaded.model,
        state=loaded.state,
        tokenizer=loaded.tokenizer,
        heads=loaded.heads,
        untrained=(head,),
    )
    checkpoint.finalize(str(tmp_path / "marked"))
    marked = checkpoint.load(str(tmp_path / "marked"))
    assert head not in marked.trained_heads
    with pytest.raises(UsageError, match=f"{head} of .* was never trained"):
        marked.require_trained(head)


@pytest.mark.parametrize(
    ("modules", "names", "kept"),
    [
        (("pair", "pooler"), ("mlm",), ("pair", "pooler")),
        (("pair", "pooler"), ("mlm", "nsp"), ()),
        (("masked_lm", "pair"), ("mlm",), ("pair",)),
        (("masked_lm", "pooler"), ("mlm",), ()),
        (("discriminator", "generator"), ("mlm", "rtd"), ()),
        (("encoder.output",), ("random-spans",), ()),
        ((), ("mlm",), ()),
    ],
)
def test_a_training_changes_the_heads_of_its_objectives(
    modules: tuple[str, ...], names: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    assert still_untrained(modules, names) == kept


def test_a_class_for_a_task_that_the_family_lacks_is_named(tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=len(PIECES)
    )
    model = seeded(lambda: transformers.GPT2DoubleHeadsModel(config))
    directory = saved(model, tmp_path / "hub")
    path = tmp_path / "hub" / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "architectures": ["GPT2ForMultipleChoice"]}))
    with pytest.raises(
        DataError, match=r"has the class GPT2ForMultipleChoice, which Cloze's gpt2 does not have"
    ):
        imported(directory, tmp_path / "out")


def test_a_tokenizer_with_more_pieces_than_the_embedding_has_rows_is_refused(
    tmp_path: Path,
) -> None:
    for rows, fits in ((len(PIECES) + 3, True), (len(PIECES), True), (len(PIECES) - 1, False)):
        config = transformers.BertConfig(**{**SIZES, "vocab_size": rows})
        hub = tmp_path / f"hub-{rows}"
        directory = saved(seeded(lambda: transformers.BertForMaskedLM(config)), hub)  # noqa: B023
        if fits:
            imported(directory, tmp_path / f"out-{rows}")
        else:
            with pytest.raises(DataError, match=rf"of {len(PIECES)} pieces .* of {rows}; use the"):
                imported(directory, tmp_path / f"out-{rows}")
