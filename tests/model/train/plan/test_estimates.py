"""The memory of a training: what layers keep, counted beforehand and on the tensors that autograd
keeps; and ZeRO's shares.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloze.core.stages.cost import MachineSpec
from cloze.model import hardware
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_model
from cloze.model.families.registry import model_config
from cloze.model.layers.encoder import enable_activation_checkpointing
from cloze.model.train.distributed import assign_owners
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.plan.estimates import HEAP, ComputeOptions, StepCost, approximate_parameters
from tests.slices import few
from tests.tiny_models import tiny_batch

ROWS, LENGTH = 8, 64
OBJECTIVES = {
    "bert": ("mlm", "nsp"),
    "albert": ("mlm", "sop"),
    "electra": ("mlm", "rtd"),
    "gpt2": ("lm",),
}
CHANGES: dict[str, dict[str, Any]] = {
    "modern": {"local_attention": 16},
    "longformer": {"attention_window": 8},
    "deberta": {"position_buckets": 16},
    "electra": {"embedding_size": 64, "generator_size": 0.5},
}


def small(family: str, layers: int) -> ModelConfig:
    values = {
        "family": family,
        "vocab_size": 100,
        "hidden_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
    }
    return model_config(
        {
            **values,
            "intermediate_size": 256,
            "max_position_embeddings": 128,
            **CHANGES.get(family, {}),
        }
    )


def kept(model: ModelConfig, precision: Any, again: bool = False) -> int:
    """Bytes that autograd keeps of a forward pass over full rows, weights in their own form not
    counted.
    """
    network = new_model(model)
    if again:
        enable_activation_checkpointing(network)
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    names = OBJECTIVES.get(model.family, ("mlm",))
    scoring = PretrainModule(network, names, precision).train()
    batch = tiny_batch(ROWS, LENGTH, vocab_size=model.vocab_size)
    predicted = round(0.15 * ROWS * LENGTH)
    batch |= {
        "attention_mask": torch.ones(ROWS, LENGTH, dtype=torch.bool),
        "masked_positions": torch.arange(predicted) * 6,
        "masked_labels": torch.full((predicted,), 7),
        "pair_labels": torch.zeros(ROWS, dtype=torch.int64),
    }
    found: dict[int, int] = {}
    alive = []  # or their addresses would be used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scoring(batch, torch.ones(len(names)))
    return sum(found.values())


each_way = pytest.mark.parametrize(
    ("family", "precision"),
    few(
        [
            pytest.param(family, precision, id=f"{family}-{precision}")
            for family in ("bert", "albert", "electra", "gpt2", "modern", "longformer", "deberta")
            for precision in ("fp32", "bf16")
        ],
        *(f"{family}-bf16" for family in ("bert", "albert", "gpt2", "deberta")),
        *(f"{family}-fp32" for family in ("bert", "electra", "modern", "longformer")),
    ),
)


@each_way
def test_a_layer_is_counted_as_what_autograd_keeps_of_it(family: str, precision: str) -> None:
    how = ComputeOptions(device="cpu", bf16=precision == "bf16")
    few, many = small(family, 3), small(family, 6)
    counted = StepCost.of(many, LENGTH, how).activation_bytes(ROWS) - StepCost.of(
        few, LENGTH, how
    ).activation_bytes(ROWS)
    if (
        how.bf16
    ):  # autocast keeps what it rounded of the matrices; the plan counts that with the weights
        counted += 2 * (approximate_parameters(many) - approximate_parameters(few))
    assert kept(many, precision) - kept(few, precision) == pytest.approx(counted, rel=0.1)


@each_way
def test_the_estimate_is_an_upper_bound_and_not_twice_what_is_kept(
    family: str, precision: str
) -> None:
    """Of a whole model: embeddings, layers, head and loss."""
    model = small(family, 6)
    how = ComputeOptions(device="cpu", bf16=precision == "bf16")
    estimate = StepCost.of(model, LENGTH, how).activation_bytes(ROWS)
    if how.bf16:  # weights that autocast rounded are counted in the state
        estimate += 2 * approximate_parameters(model)
    assert kept(model, precision) <= estimate <= 1.6 * kept(model, precision)


def test_layers_that_are_computed_again_keep_their_input() -> None:
    how = ComputeOptions(device="cpu", bf16=False, checkpointing=True)
    few, many = small("bert", 3), small("bert", 6)
    counted = StepCost.of(many, LENGTH, how).activation_bytes(ROWS) - StepCost.of(
        few, LENGTH, how
    ).activation_bytes(ROWS)
    assert counted == 3 * ROWS * LENGTH * 4 * 64
    one = small("bert", 1)
    plain = ComputeOptions(device="cpu", bf16=False)
    assert StepCost.of(one, LENGTH, how).activation_bytes(ROWS) == StepCost.of(
        one, LENGTH, plain
    ).activation_bytes(ROWS)
    usual, again = kept(many, "fp32"), kept(many, "fp32", again=True)
    assert again < 0.6 * usual, "the first and the last layer are kept whole"


@pytest.mark.parametrize("family", ["gpt2", "modern"])
def test_logits_in_chunks_are_counted_as_what_is_kept_of_them(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    how, model = ComputeOptions(device="cpu", bf16=False), small(family, 2)
    predicted = ROWS * LENGTH if family == "gpt2" else round(0.15 * ROWS * LENGTH)
    whole, planned = kept(model, "fp32"), StepCost.of(model, LENGTH, how).activation_bytes(ROWS)
    rows = 16
    monkeypatch.setitem(hardware.LOGIT_CHUNK, "cpu", 4 * model.vocab_size * rows)
    saved = whole - kept(
        model, "fp32"
    )  # the logits' gradient for that of the embeddings; the states' for the states
    assert saved == pytest.approx(
        4 * predicted * model.vocab_size - 4 * model.vocab_size * model.word_width, abs=500
    )
    counted = planned - StepCost.of(model, LENGTH, how).activation_bytes(ROWS)
    around = -predicted % 64  # it is planned for a multiple of so many
    logits = 4 * model.vocab_size * (2 * (predicted + around) - rows)
    assert counted == pytest.approx(logits - 8 * model.vocab_size * model.word_width)
    assert StepCost.of(model_config("gpt2", vocab_size=50257), 512).fitting_rows(20e9) > 0


def test_offload_takes_the_optimizer_s_state_off_the_gpus() -> None:
    model = model_config("bert-large", vocab_size=30522)
    optimizer = 4 * 4 * approximate_parameters(model) / 8  # weights, gradient and two moments
    for zero in (1, 2, 3):
        there, away = (
            StepCost.of(model, 128, ComputeOptions(offload=off), ranks=8, zero=zero).memory(8)
            for off in (False, True)
        )
        assert there.total - away.total == pytest.approx(optimizer)
        assert away.host - there.host == pytest.approx(optimizer)
    assert StepCost.of(model, 128, ComputeOptions(offload=True)).memory(8) == StepCost.of(
        model, 128
    ).memory(8)


def test_ranks_share_out_more_with_every_stage_and_alone_nothing() -> None:
    model = model_config(
        "megatron-bert-3.9b", vocab_size=30522
    )  # DeepSpeed keeps 1e9 weights whole at stage 3
    found = [StepCost.of(model, 128, ranks=8, zero=zero).memory(8).total for zero in range(4)]
    assert found == sorted(found, reverse=True)
    alone = [StepCost.of(model, 128, zero=zero).memory(8).total for zero in range(4)]
    assert len(set(alone)) == 1
    assert StepCost.of(model, 128, ranks=64, zero=2).memory(8).total < found[2]


@pytest.mark.parametrize(
    "name",
    [
        "bert-mini",
        "roberta-tiny",
        "albert-base",
        "electra-small",
        "modern-tiny",
        "longformer-tiny",
        "deberta-v3-tiny",
        "gpt2",
    ],
)
def test_weights_are_counted_as_there_are(name: str) -> None:
    model = model_config(name, vocab_size=8192)
    with torch.device("meta"):
        there = sum(parameter.numel() for parameter in new_model(model).parameters())
    assert approximate_parameters(model) == pytest.approx(there, rel=0.02)


@pytest.mark.parametrize("family", ["bert", "albert", "modern"])
@pytest.mark.parametrize("ranks", [1, 2, 5, 64])
def test_a_save_copies_what_the_rank_writes_that_writes_most(family: str, ranks: int) -> None:
    model = small(family, 6).model_copy(update={"vocab_size": 5000})
    sizes = {name: tensor.numel() for name, tensor in new_model(model).state_dict().items()}
    owner, total = assign_owners(sizes, ranks), sum(sizes.values())
    most = max(
        sum(size for name, size in sizes.items() if owner[name] == rank) for rank in range(ranks)
    )
    assert StepCost.of(model, 128, ranks=ranks).save_bytes == pytest.approx(
        4 * (most + 2 * total / ranks), rel=0.05
    )


def test_the_copy_for_a_save_is_counted_once_and_where_it_lies() -> None:
    model = model_config("bert-base", vocab_size=30522)
    for ranks, zero in ((1, 0), (8, 0), (8, 1), (8, 3)):
        on_cpu, on_gpu = (
            StepCost.of(model, 128, ComputeOptions(device=device), ranks=ranks, zero=zero).memory(8)
            for device in ("cpu", "cuda")
        )
        assert on_cpu.total - on_cpu.training == pytest.approx(
            HEAP * StepCost.of(model, 128, ranks=ranks).save_bytes
        )
        assert (on_cpu.host, on_gpu.saving, on_gpu.total) == (0, 0, on_gpu.training)
        assert on_gpu.host > StepCost.of(model, 128, ranks=ranks).save_bytes


def test_what_fits_fits_and_more_does_not() -> None:
    model = model_config("roberta-large", vocab_size=50265)
    for ranks, zero in ((1, 0), (8, 1), (8, 3)):
        rows = StepCost.of(model, 512, ranks=ranks, zero=zero).fitting_rows(40e9)
        assert rows % 8 == 0
        for count, fits in ((rows, True), (rows + 9, False)):
            found = StepCost.of(model, 512, ranks=ranks, zero=zero).memory(count)
            assert (found.training <= 0.9 * 40e9) is fits
    assert StepCost.of(model, 512).fitting_rows(5e9) == 0


@pytest.mark.parametrize(
    ("told", "row"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-40GB", "a100-40"), ("NVIDIA A100-SXM4-80GB", "a100-80"), ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA L40S", "l40s"), ("NVIDIA A10G", "a10g"), ("NVIDIA B200", "b200"),
        ("Tesla V100-SXM2-32GB", "v100"), ("NVIDIA H200", "h200"), ("NVIDIA L4", "l4"), ("Radeon", None), ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 NVL", None),
    ],
)  # fmt: skip
def test_a_driver_s_name_finds_its_row(told: str, row: str | None) -> None:
    found = hardware.recognised(told)
    assert (None if found is None else found.name) == row


def test_this_machine_s_gpu_has_the_memory_that_it_says() -> None:
    found = hardware.of(
        "cuda", MachineSpec(cpus=8, gpus=1, gpu_bytes=79 << 30, gpu="NVIDIA H100 80GB HBM3")
    )
    assert (found.name, found.memory) == ("h100", 79 << 30)
    assert hardware.of("cuda", MachineSpec(gpus=1)).name == hardware.DEFAULT_GPU
    assert not hardware.GPUS["v100"].computes_bf16
