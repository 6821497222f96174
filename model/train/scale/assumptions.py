"""What a plan takes for granted, each a sentence with its source."""

from __future__ import annotations

from model.train.memory import MARGIN
from model.train.scale import step
from model.train.scale.goodput import LLAMA_3, Faults
from model.train.scale.hardware import Device
from model.train.scale.network import REACHED
from model.train.scale.setting import Setting
from pipeline.core.humanize import duration, size


def assumptions(setting: Setting, faults: Faults) -> list[str]:
    """One sentence each."""
    wanted, device, links, model = setting.wanted, setting.device, setting.links, setting.model
    found = [f"{device.told()} ({device.source})."]
    if device.kind == "cuda":
        found.append(_mfu(setting))
    else:
        found.append(
            "A core computes large models as fast as one of a Xeon with AMX (benchmarks/README.md); --gpus plans for GPUs."
        )
    found.append(f"{MARGIN:.0%} of the memory can be planned with.")
    if wanted.global_batch is None:
        found.append(f"{setting.batch:,} sequences a step: the {model.family} paper's; --global-batch says otherwise.")
    if wanted.length is None:
        found.append(f"Rows of {setting.length} tokens; --length says otherwise.")
    if wanted.vocabulary is None:
        found.append(f"A vocabulary of {model.vocab_size:,} pieces; --vocab-size says otherwise.")
    found.append(f"Rows are {setting.mean / setting.length:.0%} full.")
    if links.ranks > 1:
        found.append(_network(setting))
    found.append(_energy(device))
    times = "each token once" if wanted.epochs == 1 else f"is read {wanted.epochs:g} times"
    found.append(f"The dataset has {wanted.copies} mask copies of 15 % and {times}; --copies and --epochs say otherwise.")
    found.append(_failures(setting, faults))
    return found


def _mfu(setting: Setting) -> str:
    if setting.mfu is not None:
        return f"Matrices reach {setting.mfu:.0%} of the GPU's peak (--mfu)."
    return (
        f"Matrices reach {step.MFU:.0%} of the GPU's peak: BERT-large reaches 45 % (NVIDIA DeepLearningExamples, A100), BERT-base 24 %"
        " (MosaicML, A100); this trainer has not been measured on a GPU; --mfu says otherwise."
    )


def _network(setting: Setting) -> str:
    links = setting.links
    between = f", {size(links.between)}/s from a machine to others" if links.ranks > links.per_node else ""
    return (
        f"{links.per_node} GPUs a machine, {size(links.inside)}/s between its GPUs{between}, of which {REACHED:.0%} is reached; gradients"
        f" are sent as fp32 beside {step.OVERLAP:.0%} of the last backward pass; --interconnect and --gpus-per-node say otherwise."
    )


def _energy(device: Device) -> str:
    if device.kind == "cpu":
        return f"Energy is the cores' share of a processor's limit, {device.watts:,.0f} W, without the rest of the machine."
    return (
        f"Energy is that of the boards at their limit of {device.watts:,.0f} W, without hosts and cooling (a DGX H100 takes up to 10.2 kW,"
        " 1.8 times its GPUs: NVIDIA's data sheet)."
    )


def _failures(setting: Setting, faults: Faults) -> str:
    wanted = setting.wanted
    source = "Llama 3: 419 in 54 days on 16,384 H100" if wanted.gpu_hours == LLAMA_3 else "--gpu-hours-between-failures"
    unit = "GPU" if setting.device.kind == "cuda" else "machine"
    measured = wanted.save_seconds is not None and wanted.restart_seconds is not None
    return (
        f"One unplanned interruption in {wanted.gpu_hours:,.0f} hours of a {unit} ({source}); a save stops training for"
        f" {duration(faults.stall)}, a restart takes {duration(faults.restart)}"
        + (" (both as measured)." if measured else "; --save-seconds and --restart-seconds give measured ones.")
    )
