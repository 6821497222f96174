"""How often to save: Young's and Daly's rules beside a simulation of interruptions, by number of GPUs.

    python -m benchmarks.goodput [--gpus 1,8,64,1024,16384] [--save-seconds 0.5] [--writing-seconds 10] [--restart-seconds 100]
                                 [--gpu-hours 50677] [--days 30] [--seeds 20]

Interruptions are drawn at random, as often as Llama 3's training had them for each GPU and hour unless said otherwise. Give the seconds that
your training's saves and restarts take. `best` is the interval that did best among steps of a tenth; each goodput is the mean of the same
draws, `rule` the arithmetic's for Daly's interval, `10 min` that of the trainer's default.
"""

from __future__ import annotations

import argparse

from model.train.scale import goodput
from model.train.scale.goodput import Faults
from pipeline.core.humanize import duration

DAY = 86_400.0
DEFAULT = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,8,64,1024,16384")
    parser.add_argument("--save-seconds", type=float, default=0.5, help="that a save stops the training")
    parser.add_argument("--writing-seconds", type=float, default=10.0, help="until a save counts")
    parser.add_argument("--restart-seconds", type=float, default=100.0, help="from an interruption to the next step")
    parser.add_argument("--gpu-hours", type=float, default=goodput.GPU_HOURS, help="of one GPU between interruptions")
    parser.add_argument("--days", type=float, default=30.0, help="of steps")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    print(
        f"one interruption in {options.gpu_hours:,.0f} GPU-hours; a save stops {options.save_seconds:g} s and counts after"
        f" {options.writing_seconds:g} s, a restart takes {options.restart_seconds:g} s; {options.days:g} days of steps"
    )
    print(
        f"{'GPUs':>7} {'interrupted every':>18} {'Young':>12} {'Daly':>12} {'best':>12} {'at Daly':>8} {'rule':>8} {'best':>8} {'10 min':>8}"
    )
    for gpus in map(int, options.gpus.split(",")):
        faults = Faults(
            between=goodput.between_interruptions(gpus, options.gpu_hours),
            restart=options.restart_seconds,
            stall=options.save_seconds,
            writing=options.writing_seconds,
        )
        work, seeds, daly = options.days * DAY, range(options.seeds), goodput.daly(faults)
        best, reached = goodput.best_simulated(faults, work=work, seeds=seeds, around=daly)
        at_daly, at_default = (goodput.simulated(faults, every, work=work, seeds=seeds) for every in (daly, DEFAULT))
        print(
            f"{gpus:>7,} {duration(faults.between):>18} {duration(goodput.young(faults)):>12} {duration(daly):>12} {duration(best):>12}"
            f" {at_daly:>8.2%} {goodput.expected(faults, daly):>8.2%} {reached:>8.2%} {at_default:>8.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
