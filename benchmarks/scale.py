"""The tables of docs/scale.md: what pretraining takes on 1 to 1,024 GPUs, by the plan's arithmetic. Seconds, nothing is trained.

python -m benchmarks.scale [--gpu h100] [--gpus 1,8,64,1024] [--mfu 0.4] [--interconnect 400e9]
"""

from __future__ import annotations

import argparse
from typing import Any

from model.train.scale.plan import planned
from pipeline.core.errors import UsageError
from pipeline.core.humanize import si

# What is pretrained: a name, its preset, length, sequences a step, tokens.
RECIPES: tuple[tuple[str, str, int, int, float], ...] = (
    # 1M steps of 256 at 128: 90 % of BERT's training (Devlin et al., 2019, appendix A.2), counted as all of it
    ("BERT-base, 256 a step", "bert-base", 128, 256, 31e9),
    ("BERT-large, 256 a step", "bert-large", 128, 256, 31e9),
    # LAMB's first phase (You et al., 2020; NVIDIA DeepLearningExamples)
    ("BERT-large, 65,536 a step", "bert-large", 128, 65_536, 56e9),
    ("RoBERTa-large, 8,192 a step", "roberta-large", 512, 8_192, 2e12),  # 500,000 steps (Liu et al., 2019, section 5)
)


def row(name: str, gpus: int, values: dict[str, Any]) -> str:
    """A line of Markdown; where it breaks, why."""
    try:
        found = planned(1, gpus=gpus, **values)
    except UsageError:
        return f"| {name} | {gpus:,} | – | – | – | – | – | – | fewer sequences than GPUs |"
    way, breaks = found["chosen"], []
    if any("too small" in warning for warning in found["warnings"]):
        breaks.append("batch too small")
    if any("network" in warning for warning in found["warnings"]):
        breaks.append("network")
    cut = f"{way['micro_batch']} × {way['accumulation']}" + (f", ZeRO {way['zero']}" if way["zero"] else "")
    hours, network = way["hours"], way["network"]
    return (
        f"| {name} | {gpus:,} | {cut} | {_number(hours)} | {_number(way['gpu_hours'])} | {_number(way['energy_kwh'])} | {way['mfu']:.0%}"
        f" | {network['share']:.0%}, {network['waiting_share']:.0%} | {', '.join(breaks) or 'no'} |"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--gpus", default="1,8,64,1024")
    parser.add_argument("--mfu", type=float)
    parser.add_argument("--interconnect", type=float, help="bytes a second of a machine")
    options = parser.parse_args()
    print("| training | GPUs | rows | hours | GPU-hours | kWh | of the peak | network, waits | breaks |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, model, length, batch, tokens in RECIPES:
        for gpus in map(int, options.gpus.split(",")):
            values = {"model": model, "gpu": options.gpu, "length": length, "global_batch": batch, "tokens": tokens}
            given = {"mfu": options.mfu, "interconnect": options.interconnect}
            told = f"{name}, {si(tokens)} tokens"
            print(row(told, gpus, values | {key: value for key, value in given.items() if value is not None}))


if __name__ == "__main__":
    main()
