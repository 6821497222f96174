"""How fast a model trains on ragged or packed rows: a row a case and a way.

    loop     `cloze pretrain` as it runs by default, compiled on a GPU: loader, engine, figures
    plain    the same with --no-compile
    bare     the same compiled model, objectives and optimizer in the loop that anybody would write,
             with batches laid out and on the device beforehand
    theirs   transformers' class of the same architecture in that loop: sdpa, padded rows
    flash    theirs without padding: rows end to end, FlashAttention's kernel with their bounds
             (torch's copy of FlashAttention 2, which "loop" uses too)

Transformers computes the logits of all positions, so it takes a step in `PARTS` micro-batches.
Tokens are real ones. MFU is by `cloze.model.train.plan.estimates.flops_per_token`, whose terms for BERT
are 72 L h^2 + 12 L h s + 6 rate h V, over the peak of `cloze.model.train.throughput`.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu.place import Place
from benchmarks.gpu.tiny_trainings import Skipped
from benchmarks.model_steps import theirs
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.model.data.batch import TokenCounts, collate, empty_batch, move, sizes
from cloze.model.data.layouts import LayoutKind, layout_for
from cloze.model.data.shards import ShardedRows
from cloze.model.families.config import ModelConfig, for_dataset
from cloze.model.families.models import new_model
from cloze.model.families.registry import model_config
from cloze.model.layers.attention_kernels import runs_varlen, varlen_attention
from cloze.model.layers.batch import Batch
from cloze.model.layers.cross_entropy import IGNORED
from cloze.model.objectives import choose
from cloze.model.train import pretraining
from cloze.model.train.config import PretrainConfig
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.optimizers.adam import adamw
from cloze.model.train.optimizers.parameters import freeze_unused, parameter_groups
from cloze.model.train.plan.estimates import flops_per_token
from cloze.model.train.precision import DTYPES, Precision, autocast, resolve
from cloze.model.train.setup import hyperparameters, step_duration
from cloze.model.train.throughput import mfu_meter

Step = Callable[[Sequence[Batch]], None]
WAYS = ("loop", "plain", "bare", "theirs", "flash")
PACKED_WAYS = ("loop", "bare", "flash")
BATCHES = 8  # that go round, of the ways without a loader
PARTS = 4
WARM = 3  # log lines, or steps, that do not count
STEPS = 10_000_000  # more than there is time for
GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is trained: a preset, rows of up to so many tokens, so many of them a step."""

    model: str
    length: int
    rows: int
    packed: bool = False

    @property
    def name(self) -> str:
        return f"{self.model} {self.length:,}{' packed' if self.packed else ''}"

    @property
    def ways(self) -> tuple[str, ...]:
        return PACKED_WAYS if self.packed else WAYS


# A step of BERT's 256 rows of 512; packed rows are full, so half as many.
CASES = (
    Case(model="bert-large", length=512, rows=256),
    Case(model="bert-base", length=512, rows=256),
    Case(model="bert-large", length=512, rows=128, packed=True),
    Case(model="bert-base", length=512, rows=128, packed=True),
    Case(model="modern-base", length=512, rows=256),
    Case(model="bert-base", length=128, rows=1024),
    Case(model="modern-base", length=4096, rows=32),
)
TINY = (
    Case(model="bert-tiny", length=32, rows=8),
    Case(model="bert-tiny", length=32, rows=8, packed=True),
    Case(model="modern-tiny", length=64, rows=4),
)


def cases(tiny: bool) -> tuple[Case, ...]:
    """In the order of their worth: what there is no time for is missing from the end."""
    return TINY if tiny else CASES


def measure(case: Case, way: str, place: Place) -> dict[str, Any]:
    """A row's figures.

    Raises:
        Skipped: it is not for this machine.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if way in ("loop", "plain"):
        plain = way == "plain" or place.device == "cpu"  # whose compiler takes minutes
        return _loop(case, place, compiled=False if plain else None)
    return _plain(case, place, way)


class _Enough(Exception):
    """There are figures enough."""


class _LogReporter(Reporter):
    """Takes log lines until the time is over; nobody needs the training's end, and its save."""

    def __init__(self, seconds: float) -> None:
        self.lines: list[dict[str, Any]] = []
        self._seconds, self._until = seconds, float("inf")

    def metrics(self, values: Mapping[str, Any]) -> None:
        self.lines.append(dict(values))
        if len(self.lines) == WARM:
            self._until = time.monotonic() + self._seconds
        if len(self.lines) > WARM and time.monotonic() > self._until:
            raise _Enough


def _config(case: Case, model: ModelConfig, log_every: int) -> PretrainConfig:
    return PretrainConfig(
        model=model,
        steps=STEPS,
        global_batch=case.rows,
        heldout_rows=0,
        log_every=log_every,
        learning_rate=1e-4,
        precision="auto",
    )


def _loop(case: Case, place: Place, compiled: bool | None) -> dict[str, Any]:
    model, dataset = _material(case, place)
    reporter = _LogReporter(place.seconds)
    execution = Execution(
        device="cuda" if place.device == "cuda" else "cpu",
        micro_batch=case.rows,
        engine="torch",
        checkpoint_every=10**9,
        compile=compiled,
        threads=None if place.device == "cuda" else torch.get_num_threads(),
    )
    with tempfile.TemporaryDirectory(dir=place.scratch) as path:
        build = BuildContext(
            path=path,
            inputs={"dataset": dataset},
            execution=execution,
            fingerprint="0" * 64,
            report=reporter,
        )
        with contextlib.suppress(_Enough):
            pretraining.run(_config(case, model, 2 if place.tiny else 4), build)
    lines = reporter.lines[WARM:]
    found = {  # lines of as many steps each: the mean time of them
        **{
            name: len(lines) / sum(1 / line[name] for line in lines)
            for name in ("tokens_per_second", "padded_tokens_per_second")
        },
        "mfu": float(np.mean([line["mfu"] for line in lines])) if "mfu" in lines[-1] else None,
        "data_wait": float(np.mean([line["data_wait"] for line in lines])),
        "memory_gb": lines[-1].get("gpu_memory_gb", lines[-1]["memory_gb"]),
        "loss": lines[-1]["loss"],
    }
    shares = {
        name: float(np.mean([line[name] for line in lines]))
        for name in lines[-1]
        if name.startswith("time_")
    }
    return {**found, **shares}


def _plain(case: Case, place: Place, way: str) -> dict[str, Any]:
    """Without a loader."""
    device = torch.device(place.device)
    model, dataset = _material(case, place)
    precision = resolve("auto", device)
    if way == "bare":
        step, kind, weights = _ours(case, model, dataset, device)
    else:
        step, kind, weights = _theirs(case, model, device, way == "flash")
    parts = 1 if way == "bare" else PARTS
    batches, own = _batches(dataset, case, kind, parts)
    there = [[move(batch, device) for batch in step_batches] for step_batches in batches]
    for number in range(WARM):
        step(there[number % len(there)])
    _wait(device)
    began, tokens, steps = time.perf_counter(), 0, 0
    while steps < 2 or time.perf_counter() - began < place.seconds:
        step(there[steps % len(there)])
        tokens, steps = tokens + own[steps % len(own)].tokens, steps + 1
        _wait(device)  # or the host would run ahead for as long as there are events
    _wait(device)
    speed = tokens / (time.perf_counter() - began)
    whole = sum(own, TokenCounts())
    meter = mfu_meter(partial(flops_per_token, model), precision, device, 1, [])
    found: dict[str, Any] = {
        "tokens_per_second": speed,
        "padded_tokens_per_second": speed * whole.positions / whole.tokens,
        "mfu": None if meter is None else meter.mfu(speed, whole.attended / whole.tokens),
        "parameters": weights,
    }
    if device.type == "cuda":
        found["memory_gb"] = torch.cuda.max_memory_allocated() / GB
    return found


def _ours(
    case: Case, model: ModelConfig, dataset: str, device: torch.device
) -> tuple[Step, LayoutKind, int]:
    info = ShardedRows(dataset).info
    assert info is not None
    precision = resolve("auto", device)
    torch.manual_seed(0)
    network = new_model(model)
    compiled = device.type == "cuda"
    names, weights = choose(model, info), model.loss_weights()
    scoring = PretrainModule(network, names, precision, compiled, device.type, weights)
    kind = layout_for([network], device, DTYPES[precision])
    freeze_unused(scoring, {**empty_batch(pad=info.special.pad), "mask_id": torch.tensor(-1)})
    scoring.to(device).train()

    def loss_of(batch: Batch) -> Tensor:
        counts = torch.ones(len(scoring.names), device=device) * len(batch["masked_labels"])
        loss: Tensor = scoring(batch, counts)[0]
        return loss

    return (
        _step(case, model, scoring, loss_of, precision),
        kind,
        sum(one.numel() for one in network.parameters()),
    )


def _theirs(
    case: Case, model: ModelConfig, device: torch.device, flash: bool
) -> tuple[Step, LayoutKind, int]:
    try:
        import transformers
    except ImportError:
        raise Skipped("transformers is not installed") from None
    transformers.logging.set_verbosity_error()
    precision = resolve("auto", device)
    torch.manual_seed(0)
    module, loss_of = theirs(precision, model, new_model(model), device.type)
    module.to(device).train()
    if flash:
        if not runs_varlen(device, DTYPES[precision], model.head_size):
            raise Skipped("flash attention does not run here")
        transformers.AttentionInterface.register("end-to-end", _flash)
        module.set_attn_implementation("end-to-end")
        loss_of = _end_to_end(module, model, precision, device.type)
    return (
        _step(case, model, module, loss_of, precision),
        "packed" if flash else "rows",
        sum(one.numel() for one in module.parameters()),
    )


def _flash(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    bounds: Tensor,
    longest: int,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention for transformers: [1, N, T, H] each, as its own for FlashAttention gets them."""
    tokens = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    mixed = varlen_attention(*tokens, bounds, longest, sliding_window, False, dropout)
    return mixed.unsqueeze(0), None


def _end_to_end(
    module: nn.Module, model: ModelConfig, precision: Precision, device_type: str
) -> Callable[[Batch], Tensor]:
    """Return the loss of rows without padding, one behind the other: ids [1, T]."""
    offset = model.pad_token_id + 1 if model.family == "roberta" else 0

    def pair(batch: Batch) -> Batch:  # of the one row that there is
        return {"next_sentence_label": batch["pair_labels"][:1]} if "pair" in model.heads else {}

    def loss_of(batch: Batch) -> Tensor:
        layout = batch["layout"]
        labels = batch["input_ids"].new_full((1, len(layout.flat_positions) + 1), IGNORED)
        filler = batch["masked_labels"] == IGNORED
        places = layout.slots[batch["masked_positions"]].masked_fill(filler, labels.shape[1] - 1)
        labels[0, places] = batch["masked_labels"]
        segments = {}
        if model.type_vocab_size > 1:
            segments["token_type_ids"] = batch["token_type_ids"].flatten()[layout.flat_positions][
                None
            ]
        with autocast(precision, device_type):
            loss: Tensor = module(
                input_ids=batch["input_ids"].flatten()[layout.flat_positions][None],
                position_ids=layout.positions[None] + offset,
                labels=labels[:, :-1],
                bounds=layout.bounds,
                longest=layout.longest,
                **segments,
                **pair(batch),
            ).loss
        return loss

    return loss_of


def _step(
    case: Case,
    model: ModelConfig,
    module: nn.Module,
    loss_of: Callable[[Batch], Tensor],
    precision: Precision,
) -> Step:
    """Forward, backward, clipping and the update; the device is never asked."""
    config = _config(case, model, 1)
    settled = hyperparameters(config, precision, step_duration(config))
    optimizer = adamw(parameter_groups(module, settled), settled)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def step(batches: Sequence[Batch]) -> None:
        for batch in batches:
            (loss_of(batch) / len(batches)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, settled.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _material(case: Case, place: Place) -> tuple[ModelConfig, str]:
    """The model, and rows for it."""
    model = model_config(case.model)
    pairs = "pair" in model.heads
    vocabulary = 512 if place.tiny else type(model).default_vocab_size
    rows = 8 * case.rows if place.tiny else BATCHES * case.rows
    dataset = place.rows(case.length, vocabulary, rows, pairs and not case.packed, case.packed)
    info = ShardedRows(dataset).info
    assert info is not None
    positions = {"max_position_embeddings": max(model.max_position_embeddings, case.length)}
    return for_dataset(
        model.model_copy(update={"vocab_size": vocabulary, **positions}), info
    ), dataset


def _batches(
    dataset: str, case: Case, kind: LayoutKind, parts: int, count: int = BATCHES
) -> tuple[list[list[Batch]], Sequence[TokenCounts]]:
    """Steps of so many micro-batches, laid out that way, on the CPU, and what they hold."""
    shards = ShardedRows(dataset)
    info = shards.info
    assert info is not None
    found = []
    for number in range(count):
        rows = np.arange(number * case.rows, (number + 1) * case.rows) % len(shards)
        found.append(
            [
                collate(
                    shards.take(part, np.zeros_like(part)),
                    pad=info.special.pad,
                    longest=info.length,
                    layout=kind,
                )
                for part in np.array_split(rows, parts)
            ]
        )
    return found, [sizes(*batches) for batches in found]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
