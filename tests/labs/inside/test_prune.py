"""Pruning: a smaller model computes what the whole one computes with gates shut; the heads that do
nothing go first; zeros survive fine-tuning.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.labs.inside.head_gates import (
    HIGH,
    LOW,
    TEMPERATURE,
    HeadGates,
    heads_to_keep,
    importance,
    learned_gates,
)
from cloze.labs.inside.prune import keep_heads, keep_layers, layers_to_keep, sparse
from cloze.labs.inside.stages import PRUNE as STAGE
from cloze.labs.inside.stages import PruneConfig
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import load_backbone
from cloze.model.families.pruned import is_layer_matrix, with_all_heads
from cloze.model.families.registry import parse_model
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.layers.attention import SelfAttention
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.source import TaskObjective
from tests.model.tasks.stages import ALONE, evaluate, finetune, settings
from tests.model.tasks.test_families import pretrained_of
from tests.tiny_models import TRANSFORMERS, tiny_batch, tiny_config, tiny_model

UNPRUNABLE = ("albert", "deberta", "longformer", "t5", "bart", "transformer", "xlnet")
KEPT = [[0, 2], [3]]


def states(config: Any, state: dict[str, Tensor]) -> tuple[nn.Module, Tensor]:
    """The encoder with these weights, and its states at real positions."""
    batch = tiny_batch()
    encoder = load_backbone(config, {k: v for k, v in state.items() if k.startswith("encoder.")})[0]
    rows = batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
    return encoder, encoder(*rows)[batch["attention_mask"]]


@pytest.mark.parametrize("family", sorted(set(TRANSFORMERS) - set(UNPRUNABLE)))
def test_removed_heads_are_shut_gates(family: str) -> None:
    config = tiny_config(family)
    state = dict(tiny_model(family=family).state_dict())
    smaller, weights = keep_heads(config, state, KEPT)
    assert parse_model(smaller.model_dump()) == smaller
    pruned, found = states(smaller, weights)
    assert [m.num_heads for m in pruned.modules() if isinstance(m, SelfAttention)] == [2, 1]
    whole, _ = states(config, state)
    batch = tiny_batch()
    with HeadGates(whole).installed() as gates:
        gates.values = [torch.zeros(4).index_fill(0, torch.tensor(own), 1.0) for own in KEPT]
        rows = batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
        expected = whole(*rows)[batch["attention_mask"]]
    assert torch.allclose(found, expected, atol=2e-6)
    assert not torch.allclose(found, states(config, state)[1], atol=1e-2)
    # what transformers can read: as many heads as before, some of them zero
    restored, filled = with_all_heads(smaller, weights)
    assert restored == config
    assert {k: v.shape for k, v in filled.items()} == {k: v.shape for k, v in state.items()}
    assert torch.allclose(states(restored, filled)[1], expected, atol=2e-6)


@pytest.mark.parametrize("family", UNPRUNABLE)
def test_families_with_shared_projections_keep_their_heads(family: str) -> None:
    with pytest.raises(UsageError, match=f"attention heads of {family} models"):
        keep_heads(tiny_config(family), {}, KEPT)
    with pytest.raises(ValueError, match="leave it out"):
        parse_model({**tiny_config(family).model_dump(), "heads_by_layer": (1, 1)})


def test_dropped_layers() -> None:
    config = tiny_config(num_hidden_layers=4)
    state = dict(tiny_model(num_hidden_layers=4).state_dict())
    encoder, _ = states(config, state)
    smaller, weights = keep_layers(config, state, [1, 3])
    encoder.layers = nn.ModuleList([encoder.layers[1], encoder.layers[3]])
    batch = tiny_batch()
    rows = batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
    expected = encoder(*rows)[batch["attention_mask"]]
    assert torch.equal(states(smaller, weights)[1], expected)
    assert [layers_to_keep(6, 3, how) for how in ("bottom", "top", "alternate")] == [
        [0, 1, 2], [3, 4, 5], [0, 2, 4]
    ]  # fmt: skip
    modern = tiny_config("modern", num_hidden_layers=4)
    weights = dict(tiny_model(family="modern", num_hidden_layers=4).state_dict())
    assert keep_layers(modern, weights, [0, 1])[0].num_hidden_layers == 2
    for layers in ([1, 2], [0, 3]):  # no first norm, and another window
        with pytest.raises(UsageError, match="structure differs; keep other layers"):
            keep_layers(modern, weights, layers)


def test_layers_that_a_generator_or_a_residual_depends_on_are_kept() -> None:
    electra, rtd = {"family": "electra"}, {"family": "deberta", "pretraining": "rtd"}
    for changes in (electra, rtd):
        config, state = tiny_config(**changes), dict(tiny_model(**changes).state_dict())
        with pytest.raises(UsageError, match="generator has as many; fine-tune it first"):
            keep_layers(config, state, [0])
        tuned = {name: state[name] for name in state if not name.startswith("generator.")}
        assert states(*keep_layers(config, tuned, [0]))[1].isfinite().all()
    config, state = tiny_config("elmo"), dict(tiny_model(family="elmo").state_dict())
    assert states(*keep_layers(config, state, [0]))[1].isfinite().all()
    with pytest.raises(UsageError, match="layer 1 of this elmo model cannot become layer 0"):
        keep_layers(config, state, [1])


def test_dropped_layers_of_an_albert_depend_on_what_it_shares() -> None:
    batch = tiny_batch()
    rows = batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]

    def albert(shared: str) -> tuple[ModelConfig, dict[str, Tensor]]:
        changes = {"num_hidden_layers": 4, "num_hidden_groups": 1, "inner_group_num": 1}
        values = {"family": "albert", "shared": shared, **changes}
        return tiny_config(**values), dict(tiny_model(**values).state_dict())

    config, state = albert("none")
    encoder, _ = states(config, state)
    encoder.layers = nn.ModuleList([encoder.layers[1], encoder.layers[3]])
    smaller = keep_layers(config, state, [1, 3])
    assert torch.equal(states(*smaller)[1], encoder(*rows)[batch["attention_mask"]])
    with pytest.raises(UsageError, match="share weights"):
        keep_layers(*albert("all"), [0])
    config, state = albert("attention")
    assert states(*keep_layers(config, state, [0, 2]))[1].isfinite().all()
    with pytest.raises(UsageError, match="structure differs"):  # layer 0 has the attention of all
        keep_layers(config, state, [1, 2])


def test_sparsity_is_of_the_matrices_in_layers() -> None:
    def matrices(**changes: Any) -> set[str]:
        state = tiny_model(**changes).state_dict()
        return {name for name, tensor in state.items() if is_layer_matrix(name, tensor)}

    assert "encoder.output.weight" not in matrices(family="t5", tie_word_embeddings=False)
    assert "encoder.decoder.layers.1.attention.query.weight" in matrices(family="t5")
    assert "encoder.groups.0.0.attention.query.weight" in matrices(family="albert")
    assert all("attention.segment" not in name for name in matrices(family="xlnet"))


def test_heads_to_keep_leaves_one_in_each_layer() -> None:
    scores = [torch.tensor([0.1, 0.9, 0.8]), torch.tensor([0.01, 0.02, 0.03])]
    assert heads_to_keep(scores, 3) == [[1, 2], [2]]
    assert heads_to_keep(scores, 0) == [[1], [2]]
    assert heads_to_keep(scores, 6) == [[0, 1, 2], [0, 1, 2]]


@pytest.fixture(scope="module")
def tuned(
    tmp_path_factory: pytest.TempPathFactory, pieces: Any, shape: Any, sentiment: Path
) -> str:
    """A fine-tuned BERT of two layers and four heads, of which head 1 of layer 0 and head 0 of layer
    1 do nothing."""
    directory = tmp_path_factory.mktemp("prune")
    config = shape.model_copy(update={"num_hidden_layers": 2, "num_attention_heads": 4})
    start = pretrained_of("bert", directory / "start", pieces, config)
    built = finetune(settings(sentiment, baselines=False), start, directory / "tuned")
    loaded = checkpoint.load(built.artifact)
    for layer, head in ((0, 1), (1, 0)):
        loaded.state[f"encoder.layers.{layer}.attention.output.weight"][:, 8 * head :][:, :8] = 0
    path = str(directory / "checkpoint")
    checkpoint.save_weights(
        path,
        model=loaded.model,
        state=loaded.state,
        tokenizer=loaded.tokenizer,
        heads=loaded.heads,
        task=loaded.task,
    )
    checkpoint.finalize(path)
    return path


def train_objective(
    tuned: str, sentiment: Path, limit_per_class: int | None = None
) -> tuple[TaskObjective, Any]:
    model = FinetunedModel(tuned)
    split = model.encode(model.task.read(str(sentiment), "train", limit_per_class))
    return model.objective, split.samples


def test_importance_is_the_gradient_of_each_example(tuned: str, sentiment: Path) -> None:
    objective, samples = train_objective(tuned, sentiment, 20)
    found = importance(objective, samples, len(samples), 1, torch.device("cpu"))
    expected = [torch.zeros(4, dtype=torch.float64) for _ in range(2)]
    with HeadGates(objective.model).installed() as gates:
        for number in range(len(samples)):
            gates.values = [torch.ones(4, requires_grad=True) for _ in range(2)]
            batch = samples.batch([number], "rows")
            loss, _ = objective(batch, torch.ones(1))
            for total, gradient in zip(
                expected, torch.autograd.grad(loss, gates.values), strict=True
            ):
                total += gradient.abs()
    for layer, total in zip(found, expected, strict=True):
        assert torch.allclose(layer, total / total.norm(), rtol=1e-4)
    assert found[0][1] == 0
    assert found[1][0] == 0


def test_gates_shut_the_heads_that_do_nothing(tuned: str, sentiment: Path) -> None:
    objective, samples = train_objective(tuned, sentiment)
    before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    odds = learned_gates(
        objective, samples, share=0.5, count=240, epochs=8, seed=1, device=torch.device("cpu")
    )
    kept = heads_to_keep(odds, 4)
    assert 1 not in kept[0]
    assert 0 not in kept[1]
    is_open = (torch.cat(odds) - TEMPERATURE * math.log(-LOW / HIGH)).sigmoid()
    assert 0.4 <= is_open.mean() <= 0.6
    assert all(torch.equal(before[name], tensor) for name, tensor in objective.state_dict().items())


def prune(path: str, out: Path, inputs: dict[str, str] | None = None, **values: Any) -> BuildResult:
    config = PruneConfig.model_validate(values)
    execution = Execution.model_validate(ALONE)
    given = {"checkpoint": path, **(inputs or {})}
    return execute(STAGE, config, given, str(out), execution=execution)


def test_prune_evaluate_export_and_tune(
    tuned: str, sentiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, predict, predicted = tmp_path / "small", FinetunedModel.predict, []

    def counted(model: FinetunedModel, split: Any) -> Any:
        predicted.append(split)
        return predict(model, split)

    monkeypatch.setattr(FinetunedModel, "predict", counted)
    summary = prune(tuned, out, data=str(sentiment), keep_heads=0.75).manifest.summary
    assert summary["heads"] == [3, 3]  # the two that do nothing
    assert summary["parameters"] == summary["parameters_before"] - 2 * (4 * 32 * 8 + 3 * 8)
    assert summary["metrics"] == summary["metrics_before"]
    content = json.loads((out / "metrics.json").read_text())
    assert content["choice"]["kept"] == [[0, 2, 3], [1, 2, 3]]
    curve = {row["heads"]: row["accuracy"] for row in content["curve"]}
    assert len(predicted) == len(curve) + 1  # the whole model once, the pruned one after the curve
    assert min(curve) == 2
    assert curve[6] == curve[8] == summary["metrics"]["accuracy"]
    scored = evaluate(out, tmp_path / "scored", data=str(sentiment)).manifest.summary["metrics"]
    assert scored["accuracy"] == summary["metrics"]["accuracy"]
    exported = execute(EXPORT, ExportConfig(), {"checkpoint": str(out)}, str(tmp_path / "hub"))
    assert exported.manifest.summary["max_logit_difference"] < 1e-5
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["num_attention_heads"] == 4
    again = finetune(settings(sentiment, baselines=False, epochs=1), str(out), tmp_path / "again")
    assert checkpoint.load(again.artifact).model.heads_by_layer == (3, 3)


def test_the_lottery(tuned: str, sentiment: Path, tmp_path: Path) -> None:
    """Masks of the fine-tuned weights, over the weights of before; then they stay zero."""
    loaded = checkpoint.load(tuned)
    start = tmp_path / "earlier"
    first = {name: 0.5 * tensor + 0.01 for name, tensor in loaded.state.items()}
    checkpoint.save_weights(
        str(start), model=loaded.model, state=first, tokenizer=loaded.tokenizer, heads={}
    )
    checkpoint.finalize(str(start))
    out = tmp_path / "ticket"
    values = {"data": str(sentiment), "sparsity": 0.6}
    summary = prune(tuned, out, {"rewind": str(start)}, **values).manifest.summary
    assert summary["zeros"] == pytest.approx(0.6, abs=1e-3)
    ticket = checkpoint.load(str(out))
    assert ticket.task is None
    masks = {}
    for name, tensor in sparse(loaded.state, 0.6).items():
        if is_layer_matrix(name, tensor):
            masks[name] = tensor != 0
            assert torch.equal(ticket.state[name], first[name] * masks[name])
            smallest_kept, largest_cut = tensor.abs()[masks[name]], loaded.state[name].abs()
            assert smallest_kept.min() > largest_cut[~masks[name]].max()
        else:
            assert torch.equal(ticket.state[name], first[name])
    few = {"baselines": False, "epochs": 1}
    kept = finetune(settings(sentiment, keep_zeros=True, **few), str(out), tmp_path / "kept")
    free = finetune(settings(sentiment, **few), str(out), tmp_path / "free")
    for built, is_sparse in ((kept, True), (free, False)):
        state = checkpoint.load(built.artifact).state
        zeros = all(not state[name][~mask].any() for name, mask in masks.items())
        assert zeros is is_sparse
        assert any(not torch.equal(state[name], ticket.state[name]) for name in masks)
    with pytest.raises(UsageError, match="elementwise optimizers"):
        finetune(
            settings(sentiment, keep_zeros=True, optimizer="muon", **few), str(out), tmp_path / "x"
        )


def test_refusals(tuned: str, pretrained: str, sentiment: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to prune"):
        PruneConfig()
    with pytest.raises(ValueError, match="needs data"):
        PruneConfig(keep_heads=0.5)
    with pytest.raises(UsageError, match="names no task"):
        prune(pretrained, tmp_path / "a", data=str(sentiment), keep_heads=0.5)
    with pytest.raises(UsageError, match="exceeds the model's 2 layers"):
        prune(tuned, tmp_path / "b", keep_layers=3)
    with pytest.raises(UsageError, match="has other weights"):
        prune(tuned, tmp_path / "c", {"rewind": pretrained}, sparsity=0.5)
