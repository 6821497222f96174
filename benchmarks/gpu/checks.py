"""What must be equal on a GPU, as everywhere: a row a check. `tests/model/test_gpu.py` runs the
same ones, marked `gpu`.

Each is given its `Place` and returns figures to tell; what is not equal raises AssertionError, what
cannot run here `Skipped`. On the CPU they run at the smallest size, so that they are known to work
before there is a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.place import Place
from benchmarks.gpu.tiny_trainings import (
    HALF,
    ROWS,
    VOCABULARY,
    Skipped,
    assert_close,
    distance,
    logged_losses,
    resumed_alike,
    target_counts,
    tiny_scoring,
    train_steps,
    usual_precision,
    whole_gradient,
)
from cloze.model import hardware
from cloze.model.data.layouts import LayoutKind, Sequences, buckets, packed, rows
from cloze.model.data.shards import ShardedRows
from cloze.model.families.registry import FAMILIES
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.attention_kernels import runs_varlen
from cloze.model.layers.encoder import Encoder
from cloze.model.train.device_scalars import AsyncScalar
from cloze.model.train.distributed import World
from cloze.model.train.engines.create import create_engine
from cloze.model.train.evaluate.heldout import HeldoutSet, evaluate
from cloze.model.train.optimizers import OPTIMIZERS
from cloze.model.train.optimizers.adam import adamw
from cloze.model.train.optimizers.parameters import parameter_groups
from cloze.model.train.setup import hyperparameters, step_duration
from cloze.model.train.spec.engine_choice import EngineConfig
from tests.model.train.ranks import config

Figures = Mapping[str, Any]
Check = Callable[[Place], Figures]

# What cuBLAS's deterministic kernels want, from the beginning of a process.
DETERMINISTIC = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def kernels_agree(place: Place) -> Figures:
    """Attention of sequences that lie end to end beside masked attention: one layer's output and
    gradient, whole and in windows.
    """
    device, precision = torch.device(place.device), usual_precision(place)
    lengths = np.array([70, 3, 40, 16, 70])
    real = (torch.arange(70) < torch.from_numpy(lengths)[:, None]).to(device)
    varlen, worst = runs_varlen(device, torch.bfloat16, 64), 0.0
    for window in (None, 7):
        torch.manual_seed(1)
        layer = SelfAttention(128, 2, dropout=0.0, window=window).to(device)
        hidden = torch.randn(5, 70, 128, device=device, requires_grad=True)
        sequences = Sequences.alone(lengths, 70)
        tokens, padded = (
            (packed if varlen else buckets)(sequences).to(device),
            rows(sequences).to(device),
        )
        with torch.autocast(place.device, dtype=torch.bfloat16, enabled=precision == "bf16"):
            outputs = (
                tokens.put_back(layer(hidden.flatten(0, 1)[tokens.flat_positions], tokens)),
                layer(hidden, padded),
            )
        outputs = tuple(output.float() * real[..., None] for output in outputs)
        gradients = [
            torch.autograd.grad(output.square().sum(), hidden, retain_graph=True)[0]
            for output in outputs
        ]
        worst = max(worst, distance(*outputs), distance(*gradients))
    assert_close(worst, precision, "outputs or gradients")
    return {"kernel": "variable lengths" if varlen else "masked", "difference": worst}


def layouts_agree(place: Place) -> Figures:
    """Padded = unpadded = packed: loss and gradient of every family that leaves padding out."""
    precision, worst, where = usual_precision(place), 0.0, ""
    kinds: list[LayoutKind] = ["rows", "buckets"]
    if runs_varlen(torch.device(place.device), torch.bfloat16, 16):
        kinds.append("packed")
    families = [name for name in FAMILIES if name != "electra"]  # whose generator draws anew
    for family in families[:2] if place.tiny else families:
        found = {}
        for kind in kinds:
            scoring, batch = tiny_scoring(place, family, precision, layout=kind)
            if any(
                not part.supports_unpadding
                for part in scoring.modules()
                if isinstance(part, Encoder)
            ):
                break
            found[kind] = whole_gradient(scoring, batch)
        for kind, gradient in found.items():
            apart = distance(gradient, found["rows"])
            worst, where = max((worst, where), (apart, f"{family} {kind}"))
    assert_close(worst, precision, f"gradients of {where}")
    return {"difference": worst, "of": where}


def fsdp_compiles_layers(place: Place) -> Figures:
    """fsdp with compiled layers beside plain torch with such, in the GPU's precision, and its
    checkpoint gone on with in plain torch.
    """
    if place.device == "cpu":
        raise Skipped("a CPU compiles the whole step, which fsdp refuses")
    values = {"precision": usual_precision(place)}
    straight = logged_losses(train_steps(place, "compiled", values=values, compile=True))
    train_steps(place, "sharded", values=values, stop_at=HALF, engine="fsdp", compile=True)
    found = logged_losses(train_steps(place, "sharded", values=values, compile=True))
    worst = max(abs(a - b) / a for a, b in zip(straight, found, strict=True))
    assert_close(worst, usual_precision(place), "losses")
    return {"difference": worst}


def compiled_is_eager(place: Place) -> Figures:
    """The gradient of a compiled step, of packed tokens where the kernel runs; a GPU's layers have
    the graphs of their kinds, however many there are.
    """
    counters = importlib.import_module("torch._dynamo.utils").counters
    precision, worst, graphs = usual_precision(place), 0.0, 0
    varlen = runs_varlen(torch.device(place.device), torch.bfloat16, 16)
    for family in ("bert",) if place.tiny else ("bert", "modern"):
        found = []
        for compiled in (False, True):
            counters.clear()
            scoring, batch = tiny_scoring(
                place,
                family,
                precision,
                layout="packed" if varlen else "rows",
                compiled=compiled,
                num_hidden_layers=1 if place.tiny else 6,
            )
            found.append(whole_gradient(scoring, batch))
        worst = max(worst, distance(*found))
        graphs += counters["stats"]["unique_graphs"]
    assert_close(worst, precision, "gradients")
    assert graphs <= 9, f"{graphs} graphs"
    return {"difference": worst, "graphs": graphs}


def a_cpu_checkpoint_goes_on(place: Place) -> Figures:
    """A training that was begun on the CPU ends on the device as it would have there, in fp32."""
    straight = train_steps(place, "on-cpu", device="cpu")
    train_steps(place, "moved", device="cpu", stop_at=HALF)
    moved = train_steps(place, "moved", device=place.device)
    worst = max(
        abs(a - b) / a for a, b in zip(logged_losses(straight), logged_losses(moved), strict=True)
    )
    assert_close(worst, "fp32", "losses")
    return {"difference": worst}


def resume_is_bit_exact(place: Place) -> Figures:
    """Stopped and gone on with, on the device: not a byte differs, under torch's deterministic
    kernels if not without. Rows have at most 40 tokens; in longer ones attention's backward pass
    adds blocks in an order of its own (docs/explanation/resume.md).
    """
    plain = resumed_alike(place, "plain")
    if plain:
        return {"deterministic kernels": "not needed"}
    os.environ.setdefault(*DETERMINISTIC)
    torch.use_deterministic_algorithms(True)
    try:
        assert resumed_alike(place, "deterministic"), (
            "the checkpoints differ, even with torch.use_deterministic_algorithms"
        )
    finally:
        torch.use_deterministic_algorithms(False)
    return {"deterministic kernels": "needed"}


def zero_stages_agree(place: Place) -> Figures:
    """fsdp and ZeRO 1 to 3 beside plain torch on one device, and each one's checkpoint gone on with
    in plain torch.
    """
    stages = [("fsdp", 2), ("fsdp", 3)]
    if importlib.util.find_spec("deepspeed") is not None:
        stages += [("deepspeed", stage) for stage in (1, 2, 3)]
    straight, worst = logged_losses(train_steps(place, "zero-0")), 0.0
    for engine, stage in stages:
        train_steps(place, f"{engine}-{stage}", stop_at=HALF, engine=engine, zero=stage)
        found = logged_losses(train_steps(place, f"{engine}-{stage}"))
        worst = max([worst, *(abs(a - b) / a for a, b in zip(straight, found, strict=True))])
    assert_close(worst, "fp32", "losses")
    return {"difference": worst}


def every_family_steps(place: Place) -> Figures:
    """One step of each: its loss is about that of chance, as on the CPU, and its update leaves
    finite weights.
    """
    losses = {}
    for family in FAMILIES:
        scoring, batch = tiny_scoring(place, family, usual_precision(place))
        loss, _ = scoring(batch, target_counts(scoring, batch))
        loss.backward()
        settled = hyperparameters(config(), "fp32", step_duration(config()))
        adamw(parameter_groups(scoring.model, settled), settled).step()
        chance = scoring.chance(VOCABULARY)
        found = losses[family] = float(loss)
        assert math.isfinite(found), f"{family}: the loss is {found}"
        if chance is not None and family not in (
            "electra",
            "deberta",
        ):  # of which one part of the loss weighs fifty times
            assert abs(found - chance) < 0.2 * chance, (
                f"{family}: the first loss is {found:.3f}, chance {chance:.3f}"
            )
        assert all(bool(torch.isfinite(parameter).all()) for parameter in scoring.parameters()), (
            f"{family}: weights are not finite"
        )
    return {"families": len(losses)}


def chunks_are_whole(place: Place) -> Figures:
    """Logits computed in chunks of rows: loss and gradient of whole ones."""
    precision, device = usual_precision(place), place.device
    usual, found = dict(hardware.LOGIT_CHUNK), []
    for rows_at_once in (3, 1 << 20):
        hardware.LOGIT_CHUNK[device] = 4 * VOCABULARY * rows_at_once
        try:
            found.append(whole_gradient(*tiny_scoring(place, "bert", precision)))
        finally:
            hardware.LOGIT_CHUNK.update(usual)
    worst = distance(*found)
    assert_close(worst, precision, "gradients")
    return {"difference": worst}


def sixteen_bits_train(place: Place) -> Figures:
    """fp16 with a scaled loss, and bf16 with gradients sent in bf16, beside fp32."""
    straight = logged_losses(train_steps(place, "fp32"))
    fp16 = logged_losses(train_steps(place, "fp16", values={"precision": "fp16"}))
    bf16 = logged_losses(
        train_steps(place, "bf16", values={"precision": "bf16", "grad_reduce_dtype": "bf16"})
    )
    worst = max(
        abs(a - b) / a for found in (fp16, bf16) for a, b in zip(straight, found, strict=True)
    )
    assert_close(worst, "bf16", "losses")
    return {"difference": worst}


def offload_agrees(place: Place) -> Figures:
    """The optimizer's state in the machine's memory, with fsdp all of it: the same losses."""
    if place.device != "cuda":
        raise Skipped("there is nothing to move off a CPU")
    with_deepspeed = importlib.util.find_spec("deepspeed") is not None
    worst = 0.0
    for optimizer, engines in (
        ("adamw", (("fsdp", 3), ("deepspeed", 1), ("deepspeed", 3))),
        ("lamb", (("fsdp", 2), ("deepspeed", 2))),
    ):  # of which LAMB adds up over ranks what lies on the CPU
        values = {"optimizer": optimizer}
        straight = logged_losses(train_steps(place, f"there-{optimizer}", values=values))
        for engine, stage in engines:
            if engine == "deepspeed" and not with_deepspeed:
                continue
            away = train_steps(
                place,
                f"away-{optimizer}-{engine}-{stage}",
                values=values,
                engine=engine,
                zero=stage,
                offload="cpu",
            )
            worst = max(
                [
                    worst,
                    *(abs(a - b) / a for a, b in zip(straight, logged_losses(away), strict=True)),
                ]
            )
    assert_close(worst, "fp32", "losses")
    return {"difference": worst}


def a_step_waits_for_nothing(place: Place) -> Figures:
    """Forward, backward and update by every optimizer: torch refuses whatever would make the host
    wait.
    """
    device, norms = torch.device(place.device), []
    world = World(0, 1, device)
    choices = [(EngineConfig("torch", 0), optimizer) for optimizer in OPTIMIZERS]
    if device.type == "cuda":  # on a CPU it needs a network
        choices.append((EngineConfig("fsdp", 3), "adamw"))
    for choice, optimizer in choices:
        settings = config(optimizer=optimizer)
        settled = hyperparameters(settings, usual_precision(place), step_duration(settings))
        scoring, batch = tiny_scoring(place, "bert", settled.precision)
        engine = create_engine(choice, scoring, settled, world, micro_batch=ROWS, accumulation=1)
        counts = target_counts(scoring, batch)
        try:
            for step in range(3):
                if step and device.type == "cuda":  # the first one makes what stays
                    torch.cuda.set_sync_debug_mode("error")
                engine.backward(batch, counts, last=True)
                norms.append(AsyncScalar(torch.as_tensor(engine.step(1e-3))))
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    assert all(math.isfinite(norm.value) for norm in norms)
    return {"steps": len(norms)}


def an_evaluation_waits_once(place: Place) -> Figures:
    """The device is read as often for many held-out batches as for a few: torch warns of each time
    that the host waits.
    """
    device, waits = torch.device(place.device), []
    scoring, _ = tiny_scoring(place, "bert", usual_precision(place))
    shards = ShardedRows(place.small("nsp", vocab_size=VOCABULARY, pair_task="nsp"))
    info = shards.info
    assert info is not None
    for batches in (1, 2, 6):  # the first one is for what stays
        heldout = HeldoutSet(
            shards=shards,
            rows=2 * batches,
            batch=2,
            pad=info.special.pad,
            mask=info.special.mask,
            longest=info.length,
        )
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("warn")
            try:
                found = evaluate(scoring, heldout, World(0, 1, device))
            finally:
                if device.type == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchronizing" in str(item.message) for item in warned))
        assert math.isfinite(found["heldout_loss"])
    assert waits[1] == waits[2], f"the host waits {waits[1:]} times for 2 and 6 batches"
    return {"waits": waits[-1]}


CHECKS: dict[str, Check] = {
    "kernels agree": kernels_agree,
    "padded = unpadded = packed": layouts_agree,
    "every family steps": every_family_steps,
    "a CPU checkpoint goes on": a_cpu_checkpoint_goes_on,
    "resume is bit-exact": resume_is_bit_exact,
    "ZeRO and fsdp agree": zero_stages_agree,
    "fsdp compiles layers": fsdp_compiles_layers,
    "compiled = eager": compiled_is_eager,
    "logits in chunks = whole": chunks_are_whole,
    "sixteen bits train": sixteen_bits_train,
    "offload agrees": offload_agrees,
    "a step waits for nothing": a_step_waits_for_nothing,
    "an evaluation waits once": an_evaluation_waits_once,
}
