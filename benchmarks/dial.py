"""The dial's learning rates against others: held-out MLM losses of small models, one row a size.

    python -m benchmarks.dial --dataset W/dataset [--sizes 300k,600k,1.6m] [--tokens 1M]
        [--optimizer muon] [--rates .001,.004,.016] [--out runs/dial]

Each number is `cloze pretrain --size N --tokens T --learning-rate R` on one thread, as a user types
it; without a rate it is the dial's. A training that is there already is not trained again, so the
table grows by calls. docs/explanation/dial.md has the results.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from cloze.core.artifacts.artifact import find_manifest

COMMAND = "from cloze.flows.cli import entry; entry()"


def trained(size: str, rate: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the summary of a training below `--out`, which is trained first if it is not there."""
    name = f"{size}-{options.tokens}-{options.optimizer}-{rate or 'dial'}"
    out = Path(options.out) / name
    command = [
        *(sys.executable, "-c", COMMAND, "pretrain", "--dataset", options.dataset),
        *("--size", size, "--tokens", options.tokens, "--optimizer", options.optimizer),
        *("--set", "heldout_rows=500", "--threads", "1", "--out", str(out)),
        *(("--learning-rate", rate) if rate else ()),
    ]
    manifest = find_manifest(str(out))
    if manifest is None:
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        if completed.returncode:
            raise SystemExit(f"{name}: {completed.stderr.strip() or completed.stdout.strip()}")
        manifest = find_manifest(str(out))
    assert manifest is not None
    return dict(manifest.summary)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="a dataset artifact of single sequences")
    parser.add_argument("--sizes", default="300k,600k,1.6m")
    parser.add_argument("--tokens", default="1M")
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--rates", default=".001,.004,.016")
    parser.add_argument("--out", default="runs/dial")
    options = parser.parse_args()
    rates = options.rates.split(",")
    print(f"| size | {' | '.join(rates)} | the dial's rate | its loss | above the best |")
    print("|---" * (len(rates) + 4) + "|")
    for size in options.sizes.split(","):
        losses = [trained(size, rate, options)["heldout_loss"] for rate in rates]
        own = trained(size, "", options)
        loss = own["heldout_loss"]
        cells = [f"{value:.3f}" for value in losses]
        above = 100 * (loss / min(*losses, loss) - 1)
        print(
            f"| {size} | {' | '.join(cells)} | {own['learning_rate']:g} | {loss:.3f} "
            f"| {above:.1f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()
