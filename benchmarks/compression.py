"""Size, latency, throughput and accuracy of fine-tuned classifiers in several forms, on the CPU.

    python -m benchmarks.compression --checkpoint W/sst2 W/sst2-distilled … --data TASKS
    [--random bert-base] [--rounds 5] [--threads 2] [--limit 200]

Forms are Cloze's network in fp32, in bf16, in fp32 compiled by layer, and in torch's dynamic int8;
and the files of `cloze export --format onnx --int8`, run by onnxruntime. All forms of a checkpoint
get the same padded batches of the task's dev split. A smaller model, such as a pruned or a
distilled one, is another checkpoint.

Each round runs every form of every checkpoint once, in turn; figures are medians over the rounds:
of 20 sentences one at a time, of batches of 32, and of all timed sentences in batches of 32 by
length. CPU time is that of all threads; on a machine with other work it can be compared, and the
time by the clock cannot. Accuracies are those of the whole split.

`--random` adds a model of that preset with random weights, and the task and vocabulary of the first
checkpoint: times of a usual size, and no accuracy. `--limit` times only that many sentences, of all
lengths.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.families.models import new_backbone
from cloze.model.families.registry import model_config
from cloze.model.hardware import cpu_info
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.layers.encoder import compile_layers
from cloze.model.tasks.heads import task_network
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.train.precision import autocast

SINGLES, BATCH = 20, 32

Batches = list[dict[str, Any]]
Form = Callable[[dict[str, Any]], Tensor]  # batch -> logits


@dataclass(kw_only=True)
class Variant:
    """A checkpoint in one form, with its batches and its timings in seconds, one per round.

    Attributes:
        split: batches that are timed; `singles`: sentences that are timed one at a time.
        accuracy: on the whole dev split; None for random weights.
    """

    checkpoint: str
    form: str
    megabytes: float
    run: Form
    singles: Batches
    split: Batches
    accuracy: float | None
    rounds: list[tuple[float, ...]] = field(default_factory=list)

    def measure(self) -> None:
        """Time one round; a quarter of `singles` first runs untimed, for the caches' sake."""
        self._timed(self.singles[::4])
        wall, cpu = np.median(self._timed(self.singles), axis=0)
        split = self._timed(self.split)
        batch_wall, batch_cpu = np.median(split[:-1] or split, axis=0)  # the last is smaller
        self.rounds.append((wall, cpu, batch_wall, batch_cpu, sum(row[0] for row in split)))

    def _timed(self, batches: Batches) -> list[tuple[float, float]]:
        """Return seconds by the clock and of CPU time of each batch."""
        timings = []
        for batch in batches:
            clock, cpu = time.perf_counter(), time.process_time()
            self.run(batch)
            timings.append((time.perf_counter() - clock, time.process_time() - cpu))
        return timings

    def line(self) -> str:
        """Return the row of the table."""
        sentences = sum(len(batch["input_ids"]) for batch in self.split)
        *milliseconds, split = np.median(self.rounds, axis=0)
        cells = [
            self.checkpoint,
            self.form,
            f"{self.megabytes:.1f}",
            *(f"{1e3 * value:.3g}" for value in milliseconds),
            f"{sentences / split:,.0f}",
            "" if self.accuracy is None else f"{100 * self.accuracy:.1f}",
        ]
        return f"| {' | '.join(cells)} |"


def with_plain_linears(network: nn.Module) -> nn.Module:
    """Replace Cloze's linear layers by torch's, since torch's quantization replaces no subclass."""
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Linear):
            linear = nn.Linear(module.in_features, module.out_features, module.bias is not None)
            linear.load_state_dict(module.state_dict())
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, linear.eval())
    return network


def torch_forms(path: str, scratch: str) -> Iterator[tuple[str, float, Form]]:
    """Yield name, size in MB and function of Cloze's forms; bf16 and compiled store fp32."""
    networks = [FinetunedModel(path).network for _ in range(4)]
    fp32, bf16, compiled, plain = networks
    megabytes = sum(parameter.nbytes for parameter in fp32.parameters()) / 1e6

    def in_bf16(batch: dict[str, Any]) -> Tensor:
        with autocast("bf16", "cpu"):
            return bf16(batch)

    compile_layers(compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchao shall take the place of torch.ao
        int8 = torch.ao.quantization.quantize_dynamic(
            with_plain_linears(plain), {nn.Linear}, dtype=torch.qint8
        )
    saved = os.path.join(scratch, "int8.pt")
    torch.save(int8.state_dict(), saved)
    yield "fp32", megabytes, fp32
    yield "bf16", megabytes, in_bf16
    yield "compiled", megabytes, compiled
    yield "torch int8", os.path.getsize(saved) / 1e6, int8


def onnx_forms(path: str, scratch: str) -> Iterator[tuple[str, float, Form]]:
    """Yield name, size in MB and function of the ONNX files of a checkpoint's export."""
    import onnxruntime

    hub = os.path.join(scratch, "hub")
    with torch.inference_mode(False):
        execute(EXPORT, ExportConfig(format="onnx", int8=True), {"checkpoint": path}, hub)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads would take the cores from the next form.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for form, name in (("ONNX", "model.onnx"), ("ONNX int8", "model_int8.onnx")):
        file = os.path.join(hub, "onnx", name)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]

        def run(batch: dict[str, Any], session: Any = session, names: Any = names) -> Tensor:
            arrays = {name: batch[name].long().numpy() for name in names}
            return torch.from_numpy(session.run(["logits"], arrays)[0])

        yield form, os.path.getsize(file) / 1e6, run


def variants(path: str, data: str, limit: int | None, scored: bool) -> Iterator[Variant]:
    """Build all forms of a checkpoint, and compute their accuracies."""
    model = FinetunedModel(path)
    samples = model.encode(model.task.read(data, "dev", None)).samples
    order = np.argsort(samples.lengths, kind="stable")

    def batches(numbers: Any, size: int) -> Batches:
        starts = range(0, len(numbers), size)
        return [samples.batch(numbers[start : start + size], "rows") for start in starts]

    def spread(count: int) -> Any:
        return order[np.linspace(0, len(order) - 1, min(count, len(order))).astype(int)]

    everything = batches(order, BATCH)
    timed = {
        "singles": batches(spread(SINGLES), 1),
        "split": batches(spread(limit or len(order)), BATCH),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for forms in (torch_forms, onnx_forms):
            for form, megabytes, run in forms(path, scratch):
                accuracy = None
                if scored:
                    correct = [run(b).argmax(dim=-1) == b["labels"] for b in everything]
                    accuracy = float(torch.cat(correct).float().mean())
                yield Variant(
                    checkpoint=f"{Path(path).name}, {model.parameters / 1e6:.1f} M",
                    form=form,
                    megabytes=megabytes,
                    run=run,
                    accuracy=accuracy,
                    **timed,
                )


def write_random(path: str, preset: str, target: str) -> None:
    """Write a checkpoint of another size with random weights, and the task of `path`."""
    loaded, task = checkpoint.load(path), FinetunedModel(path).task
    words = {name: getattr(loaded.model, name) for name in ("vocab_size", "pad_token_id")}
    config = model_config(preset, **words)
    network = task_network(task, new_backbone(config), config, loaded.task, 0.0)
    checkpoint.save_weights(
        target,
        model=config,
        state=network.state_dict(),
        tokenizer=loaded.tokenizer,
        heads=loaded.heads,
        task=loaded.task,
    )
    checkpoint.finalize(target)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", nargs="+", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--random", help="preset of a model with random weights")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int, help="sentences that are timed")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [
        variant
        for path in options.checkpoint
        for variant in variants(path, options.data, options.limit, scored=True)
    ]
    if options.random:
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, options.random)
            write_random(options.checkpoint[0], options.random, path)
            rows += variants(path, options.data, options.limit, scored=False)
    loads = []
    for number in range(options.rounds):
        for row in rows:
            row.measure()
        loads.append(os.getloadavg()[0])
        print(f"round {number + 1} of {options.rounds}, load {loads[-1]:.1f}", flush=True)
    flags = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in cpu_info().get("flags", "")]
    print(
        f"{cpu_info().get('model name')} ({', '.join(flags)}), {options.threads} threads, load "
        f"{min(loads):.1f} to {max(loads):.1f}, torch {torch.__version__}\n"
    )
    names = "checkpoint, form, MB, p50 of 1, CPU, p50 of 32, CPU, sentences/s, accuracy".split(", ")
    print(f"| {' | '.join(names)} |\n|---|---|{'---:|' * 7}")  # times in ms
    for row in rows:
        print(row.line())


if __name__ == "__main__":
    main()
