"""What a plan says of disk, memory, GPUs and arithmetic of a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cloze.flows.graph import estimate
from cloze.model.families.registry import presets
from cloze.model.train.plan import estimates
from tests.flows.graph.estimated import place as place
from tests.flows.graph.estimated import planned

pytestmark = pytest.mark.usefixtures("place")


def test_disk_grows_with_what_is_kept_and_memory_with_the_model(place: Path) -> None:
    _, few = planned(place)
    _, many = planned(place, "run.keep_checkpoints=5", "pretrain.milestones=[10, 20]")
    weights = estimates.approximate_parameters(
        presets()["bert-tiny"].model_copy(update={"vocab_size": 2000})
    )
    assert few["pretrain"].disk_bytes == 12 * weights * 5
    assert many["pretrain"].disk_bytes == 12 * weights * 10
    large = planned(place, "pretrain.model=bert-base")[1]["pretrain"]
    assert (large.memory_bytes or 0) > (few["pretrain"].memory_bytes or 0) + 16 * 80_000_000


def test_a_gpu_is_asked_for_where_there_is_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(estimate, "_gpu", lambda: (80 << 30, "NVIDIA A100-SXM4-80GB"))
    found = planned(
        place,
        "run.device=auto",
        "pretrain.model=bert-base",
        "pretrain.steps=100000",
        "pretrain.global_batch=256",
    )[1]
    assert found["pretrain"].gpu_memory_bytes
    assert 5e9 < found["pretrain"].gpu_memory_bytes < 80 << 30
    assert found["dataset"].gpu_memory_bytes == 0
    on_cpu = planned(
        place,
        "run.device=cpu",
        "pretrain.model=bert-base",
        "pretrain.steps=100000",
        "pretrain.global_batch=256",
    )[1]
    assert (on_cpu["pretrain"].seconds or 0) > 50 * (found["pretrain"].seconds or 1e9)


@pytest.mark.parametrize(
    ("name", "vocabulary", "counted"),
    [
        ("bert-base", 30522, 109.5e6), ("bert-large", 30522, 335.1e6), ("bert-tiny", 30522, 4.4e6), ("roberta-base", 50265, 124.7e6),
        ("albert-base", 30000, 11.7e6), ("albert-xxlarge", 30000, 222.6e6), ("modern-base", 50368, 149e6),
    ],
)  # fmt: skip
def test_the_model_s_arithmetic_is_that_of_the_papers(
    name: str, vocabulary: int, counted: float
) -> None:
    model = presets()[name].model_copy(update={"vocab_size": vocabulary})
    assert estimates.approximate_parameters(model) == pytest.approx(counted, rel=0.08), (
        "without pooler and biases"
    )


def test_operations_are_counted_for_every_layer_and_network() -> None:
    """BERT-base at 128: 6 · 85M weights, 12 L D a layer, and a sixth of the logits."""
    base, albert, electra = (
        presets()[name].model_copy(update={"vocab_size": 30000})
        for name in ("bert-base", "albert-base", "electra-small")
    )
    assert estimates.flops_per_token(base, 128) == pytest.approx(
        6 * 84.9e6 + 12 * 12 * 128 * 768 + 6 * 0.16 * 30000 * 768, rel=0.01
    )
    assert estimates.flops_per_token(albert, 128) == pytest.approx(
        estimates.flops_per_token(base, 128), rel=0.05
    )
    alone = electra.num_hidden_layers * 6 * electra.layer_weights
    assert estimates.flops_per_token(electra, 128) > 1.05 * alone, "the generator works, too"


def test_estimates_need_no_torch() -> None:
    program = (
        "import sys; from cloze.flows.graph import stages, estimate; [stages.stage(name) for name "
        "in stages.TABLE]; print('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
