"""Whether every engine trains every family alike: weights after 20 steps over two ranks, beside
plain torch in one process.

    python -m benchmarks.engines [--families bert,albert] [--precisions fp32,bf16] [--accumulation
    1,2] [--optimizers adamw,lamb]

A row is a case: `difference` is that of the tensor that differs most, as a share of its own
movement in training, `norms` the greatest relative difference of the gradient's norm at any step.
Minutes for the whole table on two cores; CPU and gloo.
"""

from __future__ import annotations

import argparse
import sys

from cloze.model.families.registry import FAMILIES
from cloze.model.train.optimizers import OPTIMIZERS
from tests.model.train.engine_cases import cases, table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", default=",".join(sorted(FAMILIES)))
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--accumulation", default="1,2")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    options = parser.parse_args()
    parts = [int(part) for part in options.accumulation.split(",")]
    optimizers = options.optimizers.split(",")
    print(
        f"{'family':<14}{'optimizer':<14}{'engine':<14}{'precision':<11}{'micro-batches':<15}"
        f"{'difference':<12}{'norms':<10}"
    )
    bad = 0
    for family in options.families.split(","):
        for row in table(
            cases([family], options.precisions.split(","), parts, optimizers), timeout=3000
        ):
            case = row.case
            engine = f"{case.engine} ZeRO {case.zero}" if case.zero else case.engine
            verdict = "ok" if row.ok else f"BAD at {row.where}"
            print(
                f"{family:<14}{case.optimizer:<14}{engine.replace('deepspeed ', ''):<14}"
                f"{case.precision:<11}{case.accumulation:<15}"
                f"{row.difference:<12.1e}{row.norms:<10.1e}{verdict}",
                flush=True,
            )
            bad += not row.ok
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
