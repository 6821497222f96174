"""DeBERTa against transformers' DebertaV2 classes, beside what the tests of all families say:
buckets, training, the enhanced mask decoder spelled out with their layers, and every form in which
there are files of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.families.models import load_backbone
from cloze.model.hub.read import import_directory, read_directory
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.layers.disentangled import log_buckets
from cloze.model.train.setup import hyperparameters, step_duration
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, config, here
from tests.parity.families import FORWARD, Case, their_inputs, their_labels, transformers
from tests.parity.test_training_steps import beginning, losses
from tests.tiny_models import tiny_batch, tiny_model, write_checkpoint, write_tokenizer

CASE = Case(family="deberta")  # a masked language model without the decoder
STEPS = 100


@pytest.mark.parametrize(
    ("buckets", "farthest"), [(256, 512), (8, 32), (6, 24), (32, 512), (-1, 512)]
)
def test_buckets_are_theirs(buckets: int, farthest: int) -> None:
    theirs = transformers.models.deberta_v2.modeling_deberta_v2
    rows = torch.zeros(1, farthest, 1)
    expected = theirs.build_relative_position(
        rows, rows, bucket_size=buckets, max_position=farthest
    )[0]
    place = torch.arange(farthest)
    assert log_buckets(place[:, None] - place, buckets, farthest).equal(expected)


def test_a_hundred_steps_lose_the_same(tmp_path: Path) -> None:
    """Rows of several lengths, which the trainer lays out without padding."""
    dataset = write_dataset(tmp_path / "dataset")
    wanted = {**STILL, "family": "deberta", "position_buckets": 8, "conv_kernel_size": 3}
    settings = config(steps=STEPS, log_every=1, evaluate_every=STEPS, model=wanted)
    here(settings, dataset, tmp_path / "run")
    trained = [line["loss"] for line in lines(tmp_path / "run" / "metrics.jsonl")]

    model, shape, batches = beginning(dataset, settings)
    values = CASE.hub.to_config(shape, shape.heads, None)
    theirs = transformers.DebertaV2ForMaskedLM(transformers.AutoConfig.for_model(**values))
    theirs.load_state_dict(CASE.hub.to_state(model.state_dict()))

    def loss_of(model: torch.nn.Module, batch: dict[str, Tensor]) -> Tensor:
        real = batch["masked_labels"] != -100
        masked = {
            **batch,
            "masked_positions": batch["masked_positions"][real],
            "masked_labels": batch["masked_labels"][real],
        }
        loss: Tensor = model(
            **their_inputs(model, batch), labels=their_labels(masked)["labels"]
        ).loss
        return loss

    assert (
        hyperparameters(settings, "fp32", step_duration(settings)).grad_clip == settings.grad_clip
    )
    reference = losses(theirs, loss_of, settings, batches)
    assert len(trained) == STEPS
    assert trained[-1] < trained[0] - 0.1
    np.testing.assert_allclose(trained, reference, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_the_decoder_asks_their_last_layer_twice(layers: int) -> None:
    case = Case(
        family="deberta", changes={"enhanced_mask_decoder": True, "num_hidden_layers": layers}
    )
    theirs = case.theirs()
    ours = case.ours(theirs)
    batch = tiny_batch(rows=5, length=29)
    real, encoder = batch["attention_mask"], theirs.deberta.encoder
    with torch.no_grad():
        seen = theirs(**their_inputs(theirs, batch), output_hidden_states=True).hidden_states[-2]
        asking = seen + ours.decoder.position.weight[:29]
        for _ in range(2):
            asking, _ = encoder.layer[-1](
                seen,
                encoder.get_attention_mask(real.long()),
                query_states=asking,
                relative_pos=encoder.get_rel_pos(seen),
                rel_embeddings=encoder.get_rel_embedding(),
            )
        masked = asking.flatten(0, 1)[batch["masked_positions"]]
        expected = ours.masked_lm(masked, ours.encoder.embeddings.word.weight)
        torch.testing.assert_close(ours(batch)["mlm_logits"], expected, **FORWARD)
        ours.predicts_all_positions = False
        torch.testing.assert_close(ours(batch)["mlm_logits"], expected, **FORWARD)


def saved(theirs: Any, base: Path, state: dict[str, Tensor] | None = None, **changes: Any) -> str:
    """Their model as a directory, with these weights and changes of its config."""
    checkpoint.copy_files(write_tokenizer(base / "scratch"), str(base / "hub"))
    theirs.save_pretrained(str(base / "hub"), **({} if state is None else {"state_dict": state}))
    name = base / "hub" / "config.json"
    kept = {
        key: value
        for key, value in {**json.loads(name.read_text()), **changes}.items()
        if value is not None
    }
    name.write_text(json.dumps(kept))
    return str(base / "hub")


def test_the_encoder_that_transformers_saved_alone_is_read(tmp_path: Path) -> None:
    """Its parameters have no prefix then."""
    theirs = CASE.theirs()
    own = CASE.ours(theirs).state_dict()
    found = read_directory(saved(theirs.deberta, tmp_path))
    assert {name.split(".")[0] for name in found.fresh} == {"masked_lm"}
    assert all(
        tensor.equal(own[name])
        for name, tensor in found.state.items()
        if name.startswith("encoder.")
    )


def test_files_as_the_authors_publish_them_are_read(tmp_path: Path) -> None:
    """Terms in one string, no architecture, the discriminator's head, and positions that the input
    does not have.
    """
    theirs = CASE.theirs()
    own = CASE.ours(theirs).state_dict()
    beside = {
        "mask_predictions.dense.weight": torch.zeros(16, 16),
        "deberta.embeddings.position_embeddings.weight": torch.zeros(32, 16),
    }
    directory = saved(
        theirs,
        tmp_path,
        {**theirs.state_dict(), **beside},
        pos_att_type="p2c|c2p",
        architectures=None,
        cloze_model=None,
    )
    found = import_directory(directory, str(tmp_path / "checkpoint"))
    assert (found.model, found.fresh) == (CASE.config, ())
    assert found.left_out == (
        "deberta.embeddings.position_embeddings.weight",
        "mask_predictions.dense.weight",
    )
    assert all(found.state[name].equal(tensor) for name, tensor in own.items())


def test_transformers_own_head_is_read(tmp_path: Path) -> None:
    """`legacy`, which is the class's default: another name for the same head, with copies of what
    is tied.
    """
    values = {**CASE.theirs().config.to_dict(), "legacy": True}
    theirs = transformers.DebertaV2ForMaskedLM(
        transformers.DebertaV2Config.from_dict(values)
    ).eval()
    assert "cls.predictions.transform.dense.weight" in theirs.state_dict()
    loaded = import_directory(saved(theirs, tmp_path), str(tmp_path / "checkpoint"))
    batch = tiny_batch()
    with torch.no_grad():
        logits = theirs(**their_inputs(theirs, batch)).logits.flatten(0, 1)[
            batch["masked_positions"]
        ]
        ours = CASE.ours(theirs)(batch)["mlm_logits"]
    torch.testing.assert_close(ours, logits, **FORWARD)
    assert loaded.fresh == ()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"relative_attention": False}, "relative_attention is false"),
        ({"embedding_size": 8}, r"embedding_size \(8\) (is not|must be) 16"),
        ({"attention_head_size": 8}, r"attention_head_size \(8\) must be 4"),
        ({"pos_att_type": ["p2p"]}, "pos_att_type"),
        ({"conv_groups": 2}, "conv_groups 2"),
    ],
)
def test_what_the_family_cannot_do_is_refused(changes: dict[str, Any], fault: str) -> None:
    values = CASE.hub.to_config(CASE.config, CASE.config.heads, None)
    assert CASE.hub.from_config(values, "config.json") == CASE.config
    with pytest.raises(DataError, match=fault):
        CASE.hub.from_config({**values, **changes}, "config.json")


def test_of_version_3_the_encoder_goes_out_with_its_embeddings_as_it_reads_them(
    tmp_path: Path,
) -> None:
    changes = {"pretraining": "rtd", "enhanced_mask_decoder": True}
    directory = write_checkpoint(
        tmp_path / "checkpoint", tmp_path / "scratch", family="deberta", **changes
    )
    before = checkpoint.load(directory)
    with torch.no_grad():
        before.state["encoder.embeddings.word.delta"].normal_()
    checkpoint.save_weights(
        str(tmp_path / "moved"),
        model=before.model,
        state=before.state,
        tokenizer=before.tokenizer,
        heads=before.heads,
    )
    checkpoint.finalize(str(tmp_path / "moved"))
    result = execute(
        EXPORT, ExportConfig(), {"checkpoint": str(tmp_path / "moved")}, str(tmp_path / "hub")
    )
    assert result.manifest.summary["architecture"] == "DebertaV2Model"
    assert result.manifest.summary["max_logit_difference"] <= 1e-5
    assert (
        "feature-extraction" in (tmp_path / "hub" / "README.md").read_text()
    )  # and not fill-mask: the head stayed behind
    opened = transformers.AutoModel.from_pretrained(str(tmp_path / "hub"), local_files_only=True)
    table = (
        before.state["encoder.embeddings.word.weight"]
        + before.state["encoder.embeddings.word.delta"]
    )
    assert opened.embeddings.word_embeddings.weight.equal(table)
    assert load_backbone(before.model, before.state).encoder.embeddings.word.weight.equal(table)
    import_directory(str(tmp_path / "hub"), str(tmp_path / "back"))
    after = checkpoint.load(str(tmp_path / "back"))
    assert after.model == before.model
    assert after.state["encoder.embeddings.word.weight"].equal(table)
    assert not after.state["encoder.embeddings.word.delta"].any()
    assert not torch.equal(
        tiny_model(family="deberta", **changes).encoder.embeddings.word.weight, table
    )
