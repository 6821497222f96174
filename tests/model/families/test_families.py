"""What each family is about, apart from parity: sharing, spans, replacement, order, and what a
student takes over.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cloze.core.errors import UsageError
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import first_weights, load_model, new_backbone, new_model
from cloze.model.families.pretraining import spans
from cloze.model.families.registry import FAMILIES, model_config
from cloze.model.layers.batch import overlay, unmask
from cloze.model.objectives import choose, objectives
from cloze.model.train.evaluate.scoring import PretrainModule
from tests.model.scores import score, total_loss
from tests.tiny_models import (
    TRANSFORMERS,
    dataset_info,
    tiny_batch,
    tiny_config,
    tiny_model,
    write_tokenizer,
)


def scored(
    model: Any, config: ModelConfig, batch: dict[str, Tensor], pair_task: str | None = "nsp"
) -> Any:
    found = objectives(config.default_objectives(pair_task))
    outputs = model(batch)
    return outputs, [score(objective, outputs, batch) for objective in found]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_untrained_models_lose_what_guessing_costs_and_count_beforehand(family: str) -> None:
    config = model_config(f"{family}-tiny", vocab_size=1000, max_position_embeddings=64)
    torch.manual_seed(0)
    batch = tiny_batch(rows=8, length=48, vocab_size=1000)
    module = PretrainModule(
        new_model(config), config.default_objectives("nsp"), "fp32", weights=config.loss_weights()
    ).eval()
    counts = module.count_targets(batch)
    with torch.no_grad():
        _, figures = module(
            {**batch, "mask_id": torch.tensor(4)}, torch.tensor(counts, dtype=torch.float32)
        )
    far = 0.15 if family == "t5" else 0.06  # T5's words are large: it expects what it has read
    for name, objective, total, count in zip(
        module.names, module.objectives, figures[0].tolist(), counts, strict=True
    ):
        assert objective.random_loss is not None
        assert total / count == pytest.approx(objective.random_loss(1000), rel=far), name


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_split_batches_add_up_to_the_whole(family: str) -> None:
    """Sums and counts over rows are those of the batch: padding of another width and neighbours
    change nothing.
    """
    config = tiny_config(family=family)
    model = certain(tiny_model(family=family))
    batch = tiny_batch(rows=4, length=12)
    _, whole = scored(model, config, batch)
    singles = [scored(model, config, row(batch, number))[1] for number in range(4)]
    for place, expected in enumerate(whole):
        torch.testing.assert_close(
            sum(single[place].total for single in singles), expected.total, atol=1e-4, rtol=1e-5
        )
        assert sum(int(single[place].count) for single in singles) == int(expected.count)


def certain(model: Any) -> Any:
    """Of a model that draws tokens, one that is sure of each: what it draws then does not depend on
    what else is in the batch.
    """
    if hasattr(model, "generator"):
        with torch.no_grad():
            model.generator.masked_lm.norm.weight.mul_(1000.0)
    return model


def row(batch: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    length = batch["input_ids"].shape[1]
    inside = batch["masked_positions"] // length == number
    part = {
        name: batch[name][number : number + 1]
        for name in ("input_ids", "attention_mask", "token_type_ids", "pair_labels")
    }
    part["masked_positions"] = batch["masked_positions"][inside] - number * length
    if "masked_labels" in batch:
        part["masked_labels"] = batch["masked_labels"][inside]
    return part


def test_unmasking_ignores_filler() -> None:
    batch = tiny_batch()
    filled = {
        **batch,
        "masked_positions": torch.cat(
            [batch["masked_positions"], torch.zeros(5, dtype=torch.int64)]
        ),
        "masked_labels": torch.cat([batch["masked_labels"], torch.full((5,), -100)]),
    }
    expected = batch["input_ids"].clone()
    expected.view(-1)[batch["masked_positions"]] = batch["masked_labels"]
    assert unmask(batch).equal(expected)
    assert unmask(filled).equal(expected)
    assert overlay(filled, torch.full_like(filled["masked_labels"], 3)).equal(
        batch["input_ids"].flatten().index_fill(0, batch["masked_positions"], 3).view_as(expected)
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.integers(1, 60).filter(lambda place: place % 16 not in (0, 15)), min_size=1),
    st.integers(0, 5),
)
def test_a_span_ends_where_nothing_is_masked(chosen: set[int], filler: int) -> None:
    positions = torch.tensor(sorted(chosen) + [0] * filler)
    found = spans(positions)
    for place, left, right, number in zip(
        positions.tolist(), *(part.tolist() for part in found), strict=True
    ):
        if place == 0:
            continue
        assert left not in chosen
        assert right not in chosen
        assert left < place < right
        assert set(range(left + 1, right)) <= chosen
        assert number == place - left - 1


def test_the_span_head_sees_only_the_ends_of_a_span() -> None:
    """What stands inside of a span may change; what stands at its ends may not."""
    model = tiny_model(family="spanbert")
    hidden = torch.randn(1, 10, 16)
    model.encoder.forward = lambda *_: hidden  # type: ignore[method-assign]
    batch = {
        name: tensor[:1, :10] for name, tensor in tiny_batch(length=10).items() if tensor.ndim == 2
    }
    batch["masked_positions"] = torch.tensor([3, 4, 5])
    before = model(batch)["sbo_logits"]
    hidden[0, 3:6] += 1.0
    assert model(batch)["sbo_logits"].equal(before)
    hidden[0, 6] += 1.0
    assert not torch.allclose(model(batch)["sbo_logits"], before)
    assert not torch.allclose(before[0], before[1])  # the place in the span counts


@pytest.mark.parametrize(
    ("changes", "attentions", "feed_forwards"),
    [
        ({"shared": "all"}, 1, 1),
        ({"shared": "all", "num_hidden_groups": 2}, 2, 2),
        ({"shared": "all", "num_hidden_groups": 2, "inner_group_num": 3}, 6, 6),
        ({"shared": "attention"}, 1, 4),
        ({"shared": "feed-forward"}, 4, 1),
        ({"shared": "attention", "num_hidden_groups": 2}, 2, 4),
        ({"shared": "none"}, 4, 4),
    ],
)
def test_albert_shares_what_it_says(
    changes: dict[str, Any], attentions: int, feed_forwards: int
) -> None:
    config = tiny_config(family="albert", embedding_size=8, num_hidden_layers=4, **changes)
    model = new_model(config).eval()
    names = [name for name, _ in model.named_parameters()]
    assert sum(name.endswith("attention.query.weight") for name in names) == attentions
    assert sum(name.endswith("feed_forward.up.weight") for name in names) == feed_forwards
    assert list(model.state_dict()) == names  # nothing is stored twice
    batch = tiny_batch()
    outputs, sums = scored(model, config, batch, "sop")
    total_loss(sums).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert load_model(config, model.state_dict())(batch)["mlm_logits"].equal(outputs["mlm_logits"])
    assert new_backbone(config).encoder is not None


def test_a_shared_layer_is_run_as_often_as_there_are_layers() -> None:
    torch.manual_seed(0)
    two = new_model(tiny_config(family="albert", embedding_size=8, num_hidden_layers=2))
    four = load_model(
        tiny_config(family="albert", embedding_size=8, num_hidden_layers=4), two.state_dict()
    )
    batch = tiny_batch()
    assert not torch.allclose(two.eval()(batch)["hidden"], four(batch)["hidden"])


def test_modernbert_drops_what_attention_puts_out_as_it_was_pretrained_or_as_transformers_does() -> (
    None
):
    for changes, probabilities, output in (
        ({"attention_dropout": 0.2}, 0.2, 0.2),
        ({"attention_output_dropout": 0.1}, 0.0, 0.1),
        ({"attention_dropout": 0.2, "attention_output_dropout": 0.0}, 0.2, 0.0),
    ):
        attention = tiny_model(family="modern", **changes).encoder.layers[0].attention
        assert (attention.dropout, attention.output_dropout) == (probabilities, output)


def test_a_student_takes_every_other_layer() -> None:
    teacher_config = tiny_config(num_hidden_layers=4)
    teacher = tiny_model(num_hidden_layers=4)
    student = tiny_config(family="distilbert", type_vocab_size=0, num_hidden_layers=2)
    taken = first_weights(student, teacher_config, teacher.state_dict())
    own = new_model(student).state_dict()
    assert taken.keys() == own.keys()
    for ours, theirs in ((0, 0), (1, 2)):
        name = "attention.query.weight"
        assert taken[f"encoder.layers.{ours}.{name}"].equal(
            teacher.state_dict()[f"encoder.layers.{theirs}.{name}"]
        )
    assert taken["masked_lm.bias"].equal(teacher.state_dict()["masked_lm.bias"])
    roberta = tiny_model(family="roberta", num_hidden_layers=4)
    positions = first_weights(
        student, tiny_config(family="roberta", num_hidden_layers=4), roberta.state_dict()
    )
    assert positions["encoder.embeddings.position.weight"].equal(
        roberta.state_dict()["encoder.embeddings.position.weight"][2:]
    )
    assert (
        first_weights(
            tiny_config(family="distilbert", type_vocab_size=0, hidden_size=8),
            teacher_config,
            teacher.state_dict(),
        )
        == {}
    )


def test_distillation_is_zero_for_a_student_that_thinks_alike() -> None:
    objective = objectives(("distillation",))[0]
    batch = {"masked_labels": torch.tensor([3, -100, 1])}
    logits, other = torch.randn(3, 7), torch.randn(3, 7)
    alike = {"mlm_logits": logits + 5.0, "teacher_logits": logits, "temperature": torch.tensor(2.0)}
    assert float(score(objective, alike, batch).total) == pytest.approx(0.0, abs=1e-5)
    found = score(objective, {**alike, "mlm_logits": other}, batch)
    wanted, said = (logits[[0, 2]] / 2).softmax(-1), (other[[0, 2]] / 2).softmax(-1)
    torch.testing.assert_close(
        found.total, 4 * (wanted * (wanted / said).log()).sum(), atol=1e-5, rtol=1e-5
    )
    assert int(found.count) == 2
    cosine = objectives(("cosine",))[0]
    mask = {"attention_mask": torch.tensor([[True, False]])}
    states = torch.randn(1, 2, 5)
    assert float(
        score(cosine, {"hidden": states, "teacher_hidden": 3 * states}, mask).total
    ) == pytest.approx(0.0, abs=1e-6)
    assert float(
        score(cosine, {"hidden": states, "teacher_hidden": -states}, mask).total
    ) == pytest.approx(2.0)


def test_objectives_that_cannot_be_are_refused_in_one_sentence(tmp_path: Any) -> None:
    info = dataset_info(write_tokenizer(tmp_path))
    with pytest.raises(
        UsageError,
        match=(
            r"objective \(sop\) needs a dataset with SOP pairs, this one \(recipe bert\) has pairs "
            r"for nsp"
        ),
    ):
        choose(tiny_config(family="albert"), info)
    assert choose(tiny_config(family="albert"), info, ["mlm"]) == ("mlm",)
    with pytest.raises(
        UsageError, match=r"objective \(nsp\) needs a pair head, which roberta models do not have"
    ):
        choose(tiny_config(family="roberta"), info, ["mlm", "nsp"])
    with pytest.raises(
        UsageError,
        match=r"objective \(rtd\) needs a discriminator head, which bert models do not have",
    ):
        choose(tiny_config(), info, ["rtd"])
    with pytest.raises(UsageError, match=r"objective \(distillation\) needs a teacher"):
        choose(tiny_config(family="distilbert", type_vocab_size=0), info, ["distillation"])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"family": "albert", "num_hidden_layers": 12, "num_hidden_groups": 5},
            r"num_hidden_layers \(12\) must be divisible by",
        ),
        (
            {"family": "albert", "shared": "attention", "inner_group_num": 2},
            "groups that share all parameters",
        ),
        ({"family": "roberta", "embedding_size": 128}, r"unknown config key model\.embedding_size"),
        ({"family": "distilbert", "type_vocab_size": 2}, "type_vocab_size"),
        (
            {"family": "electra", "generator_size": 0.3},
            "a generator of width 230 cannot have 3 heads",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        model_config(values)
    assert "\n" not in str(caught.value)


SMALLER = {
    "gpt2": ("attention.output.weight", "feed_forward.down.weight"),
    "modern": ("attention.output.weight", "feed_forward.down.weight", "pooler.dense.weight"),
}


@pytest.mark.parametrize("family", [family for family in TRANSFORMERS if family != "t5"])
def test_weights_start_as_the_papers_say(family: str) -> None:
    """T5 apart (tests/labs/seq2seq/test_t5.py), truncated normals of the config's deviation for matrices, 0 for biases, 1 for norms; in GPT-2
    and the modern encoder, what leads out of a block is smaller by the square root of twice the
    number of layers.
    """
    torch.manual_seed(0)
    config = tiny_config(
        family=family, initializer_range=0.02, hidden_size=64, intermediate_size=96
    )
    measured = 0
    for name, parameter in new_model(config).named_parameters():
        values = parameter.detach()
        if values.ndim == 1:
            assert bool(
                (values == (1.0 if "norm" in name and name.endswith("weight") else 0.0)).all()
            ), name
        elif values.numel() > 1500:
            scale = 0.02 / (
                math.sqrt(2 * config.num_hidden_layers)
                if name.endswith(SMALLER.get(family, ()))
                else 1.0
            )
            assert float(values.std()) == pytest.approx(scale * 0.8796, rel=0.08), name
            assert scale < float(values.abs().max()) <= 2 * scale, name
            measured += 1
    assert measured >= 5
