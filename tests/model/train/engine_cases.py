"""Every engine over two ranks beside one process: a table of families, engines, precisions,
accumulation and optimizers.

The cases of a table run one after another in the same two processes. Each is compared with plain
torch in one process on the very same micro-batches, so that nothing but the exchange of gradients
and the order of sums differs: in bf16, too, and where a model draws random numbers. Clipping is on
at every step, so a wrong norm shows in the weights. Half-way, the two ranks meet a gradient that is
not finite, and the one process does not: if that step left a trace, it would show, too.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cloze.model import hardware
from cloze.model.train.engines.protocol import Engine
from cloze.model.train.spec.interfaces import MicroBatch
from tests.model.datasets import lines
from tests.model.train.ranks import TINY, start

STEPS, BATCH, RANKS = 20, 8, 2
RATE, CLIP = 1e-2, 0.5
# Adam would blow up the rounding of gradients that are zero by nature, such as those of key biases
EPSILON = 1e-3
FLOOR = 1e-3  # of the learning rate: a tensor that moved less is measured against it
# Of a tensor's movement. Gradient that is lost moves it by tens of per cent; in bf16 a last digit
# sometimes falls to the other side, and what ELECTRA's generator draws with it.
TOLERANCE = {"fp32": 1e-3, "bf16": 6e-2, "fp16": 6e-2}
CHANGES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16, "generator_size": 0.5},
    "xlnet": {"memory": 5},
    "deberta": {
        "pretraining": "rtd",
        "enhanced_mask_decoder": True,
        "conv_kernel_size": 3,
        "position_buckets": 8,
    },
    "distilbert": {"type_vocab_size": 0},
    "longformer": {"attention_window": 8},
    "modern": {"local_attention": 8},
    "elmo": {"filters": [[1, 4], [3, 6]], "highway_layers": 1, "softmax_size": 50},
    "static": {"num_hidden_layers": 0},
}
DATASETS = dict.fromkeys(("elmo", "gpt2", "ltr", "static"), "running") | {"albert": "sop"}
WHOLE = (hardware.LOGIT_CHUNK["cpu"], hardware.WHOLE_CHUNKS)
Trained = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[float]]
ENGINES = (
    ("torch", 0),
    ("fsdp", 2),
    ("fsdp", 3),
    ("deepspeed", 1),
    ("deepspeed", 2),
    ("deepspeed", 3),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table to come. Dropout is on, as in training."""

    family: str
    engine: str
    zero: int
    precision: str
    accumulation: int
    optimizer: str = "adamw"
    reduce: str = "fp32"
    offload: bool = False
    chunks: bool = (
        False  # logits are computed in chunks of three rows; the one process computes them whole
    )
    compiled: bool = False  # each layer by itself, in the one process too

    def __str__(self) -> str:
        engine = self.engine + (f"-{self.zero}" if self.zero else "")
        return (
            f"{self.family}-{engine}-{self.precision}-{self.accumulation}-{self.optimizer}"
            + (f"-{self.reduce}-gradients" if self.reduce != "fp32" else "")
            + ("-chunks" if self.chunks else "")
            + ("-offload" if self.offload else "")
            + ("-compiled" if self.compiled else "")
        )


@dataclass(frozen=True, slots=True)
class Row:
    """What came out of a case.

    Attributes:
        difference: of the tensor that differs most, the norm of the difference beside that of its
            movement in training.
        where: that tensor.
        norms: the greatest relative difference of the gradients' norms.
    """

    case: Case
    difference: float
    where: str
    norms: float

    @property
    def ok(self) -> bool:
        return (
            self.difference <= TOLERANCE[self.case.precision]
            and self.norms <= TOLERANCE[self.case.precision]
        )


def cases(
    families: Iterable[str],
    precisions: Sequence[str] = ("fp32", "bf16"),
    parts: Sequence[int] = (1, 2),
    optimizers: Sequence[str] = ("adamw",),
) -> list[Case]:
    """All that there are. In bf16 a last digit of a gradient that falls to the other side moves
    Muon's whole update where a matrix has singular values of that size, so there fp32 shows whether
    an engine that cuts matrices is right.
    """
    return [
        Case(family, *engine, precision, part, optimizer)
        for family, precision, part, optimizer, engine in itertools.product(
            families, precisions, parts, optimizers, ENGINES
        )
        if precision == "fp32" or optimizer != "muon" or not engine[1]
    ]


def table(wanted: Sequence[Case], steps: int = STEPS, timeout: float = 600.0) -> list[Row]:
    """Run the cases in two new processes, each for so many steps."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "cases.json").write_text(
            json.dumps([steps, [asdict(case) for case in wanted]])
        )
        processes = start(["-m", "tests.model.train.engine_cases", name], RANKS, directory / "log")
        codes = [process.wait(timeout=timeout) for process in processes]
        assert not any(codes), (directory / "log").read_text()[-4000:]
        found = lines(directory / "rows.jsonl")
    return [Row(Case(**row.pop("case")), **row) for row in found]  # type: ignore[arg-type]


def _main(directory: Path) -> None:
    from cloze.core.stages.execution import Execution
    from cloze.model.train.distributed import World, init_distributed
    from tests.model.datasets import write_dataset

    world = init_distributed(Execution(threads=1, device="cpu"))
    alone = World(0, 1, world.device)
    if world.is_rank_zero:
        write_dataset(
            directory / "nsp", vocab_size=67
        )  # odd sizes, so that ZeRO has to pad its partitions
        write_dataset(directory / "sop", vocab_size=67, pair_task="sop")
        write_dataset(directory / "running", vocab_size=67, pair_task=None)
    world.decide_on_rank_zero(lambda: 0)  # they are written
    known: dict[tuple[str, str, int, str, bool], Trained] = {}
    steps, listed = json.loads((directory / "cases.json").read_text())
    for values in listed:
        case = Case(**values)
        key = (case.family, case.precision, case.accumulation, case.optimizer, case.compiled)
        dataset = str(directory / DATASETS.get(case.family, "nsp"))
        if world.is_rank_zero and key not in known:
            one_process = Case(case.family, "torch", 0, *key[1:4], compiled=case.compiled)
            known = {key: _train(one_process, dataset, alone, steps)}
        _, weights, found = _train(case, dataset, world, steps)
        if world.is_rank_zero:
            first, reference, norms = known[key]
            row = _compare(case, first, reference, weights, norms, found)
            with (directory / "rows.jsonl").open("a") as stream:
                stream.write(json.dumps(asdict(row)) + "\n")


def _train(case: Case, dataset: str, world: Any, steps: int) -> Trained:
    """The weights before and after, and the gradients' norms. One process runs the micro-batches of
    all ranks.
    """
    from cloze.labs.xlnet.two_stream import Permutation
    from cloze.model.data.batch import AttentionModes, empty_batch
    from cloze.model.data.sampler import Sampler
    from cloze.model.data.shards import ShardedRows
    from cloze.model.families.config import for_dataset
    from cloze.model.families.models import new_model
    from cloze.model.families.registry import parse_model
    from cloze.model.layers.encoder import EncoderLayer
    from cloze.model.objectives import choose
    from cloze.model.train.engines.create import create_engine
    from cloze.model.train.evaluate.scoring import PretrainModule
    from cloze.model.train.loop.data import DatasetSource
    from cloze.model.train.optimizers.parameters import freeze_unused
    from cloze.model.train.spec.engine_choice import EngineConfig
    from cloze.model.train.spec.schedules import BatchSizeSchedule, Schedule, StepDuration
    from cloze.model.train.spec.train_spec import TrainingHyperparameters

    shards = ShardedRows(dataset)
    assert shards.info is not None
    hardware.LOGIT_CHUNK["cpu"], hardware.WHOLE_CHUNKS = (
        (3 * 4 * shards.info.vocab_size, 1) if case.chunks else WHOLE
    )
    assert shards.info.copies is not None
    model = for_dataset(
        parse_model({**TINY, "family": case.family, **CHANGES.get(case.family, {})}), shards.info
    )
    torch.manual_seed(5)
    network = new_model(model)
    names = choose(model, shards.info)
    scoring = PretrainModule(network, names, case.precision, weights=model.loss_weights())  # type: ignore[arg-type]
    order = Permutation(seed=1, memory=getattr(model, "memory", 0)) if "plm" in names else None
    directions = AttentionModes(transform=order)
    empty = empty_batch(pad=shards.info.special.pad, directions=directions)
    freeze_unused(scoring, {**empty, "mask_id": torch.tensor(-1)})
    first = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for layer in network.modules():
        if case.compiled and isinstance(layer, EncoderLayer):
            layer.compile(backend="aot_eager")  # without the minutes of a C++ compiler
    recipe = TrainingHyperparameters(
        duration=StepDuration(steps=steps, span=steps),
        learning_rate=RATE,
        schedule=Schedule(),
        seed=1,
        precision=scoring.precision,
        grad_reduce_dtype=case.reduce,  # type: ignore[arg-type]
        optimizer=case.optimizer,
        eps=EPSILON,
        grad_clip=CLIP,
        weight_decay=0.1,
    )
    source = DatasetSource(
        shards=shards,
        info=shards.info,
        sampler=Sampler(len(shards), shards.info.copies, 1),
        batches=BatchSizeSchedule(BATCH),
        micro_batch=math.ceil(BATCH / RANKS / case.accumulation),
        directions=directions,
    )
    engine = create_engine(
        EngineConfig(case.engine, case.zero, offload=case.offload),
        scoring,
        recipe,
        world,
        micro_batch=BATCH,
        accumulation=case.accumulation,
    )
    norms = []
    for step in range(steps):
        work = [source.step_batches(step, rank, RANKS).micro_batches for rank in range(RANKS)]
        counts = (
            torch.tensor([scoring.count_targets(item.batch) for items in work for item in items])
            .sum(dim=0)
            .clamp(min=1)
            .float()
        )
        mine = (
            [item for items in work for item in items]
            if world.size == 1
            else list(work[world.rank])
        )
        if step == steps // 2 and world.size > 1:
            assert not math.isfinite(_step(engine, mine, counts * math.nan, 1000 * step))
        norms.append(_step(engine, mine, counts, 1000 * step))
    return first, _together(engine, world), norms


def _together(engine: Engine, world: Any) -> dict[str, torch.Tensor]:
    """All weights, of which each rank gives its part."""
    mine = {name: tensor.to("cpu", copy=True) for name, tensor in engine.weights()}
    parts = [mine] * world.size
    if world.size > 1:
        torch.distributed.all_gather_object(parts, mine)
        assert sum(len(part) for part in parts) == len({name for part in parts for name in part})
    return {name: tensor for part in parts for name, tensor in part.items()}


def _step(engine: Engine, items: Sequence[MicroBatch], counts: torch.Tensor, seed: int) -> float:
    for item in items:
        torch.manual_seed(seed + item.first)
        engine.backward(item.batch, counts, last=item is items[-1])
    return float(engine.step(RATE))


def _compare(
    case: Case,
    first: dict[str, torch.Tensor],
    reference: dict[str, torch.Tensor],
    weights: dict[str, torch.Tensor],
    norms: Sequence[float],
    found: Sequence[float],
) -> Row:
    assert reference.keys() == weights.keys()
    differences = {
        name: float((weights[name] - tensor).norm())
        / max(
            float((tensor - first[name]).norm()), FLOOR * RATE * len(found) * tensor.numel() ** 0.5
        )
        for name, tensor in reference.items()
        if tensor.is_floating_point()
    }
    where = max(differences, key=lambda name: differences[name])
    furthest = max(abs(ours - theirs) / theirs for ours, theirs in zip(found, norms, strict=True))
    return Row(case, differences[where], where, furthest)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
