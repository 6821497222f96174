"""The data engine's benchmarks, a command a question. Run it from the repository's root:

    python -m benchmarks.data dataset   --work W     the dataset stage against the tokenizer alone;
    10 copies against 1; recipes python -m benchmarks.data reference --work W …   against
    google-research/bert's create_pretraining_data.py python -m benchmarks.data corpus    --work W
    the corpus stage's MB/s a core by source; two workers against one; gensim python -m
    benchmarks.data memory    --work W     peak memory and time at 20 and 200 MB python -m
    benchmarks.data loader    --work W     any position of an epoch; tokens/s into batches

What is read is made once from the real files of `--data` and kept in `--work`. Each figure is taken
in processes of their own, in alternation, medians over `--rounds`; CPU seconds stand beside wall
time, so that ratios hold on a busy machine. With `--save FILE` all samples are written as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.data import measure
from benchmarks.data.prepared import Work

COMMANDS = {
    "dataset": "dataset_stage",
    "reference": "reference",
    "corpus": "corpus_stage",
    "memory": "memory",
    "loader": "loader",
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    modules = {
        name: importlib.import_module(f"benchmarks.data.{module}")
        for name, module in COMMANDS.items()
    }
    for name, module in modules.items():
        command = commands.add_parser(
            name, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_argument("--work", required=True, help="directory of what is made and read")
        command.add_argument(
            "--data", default=str(measure.REPOSITORY.parent / "shared" / "data"), help="real files"
        )
        command.add_argument("--rounds", type=int, default=3)
        command.add_argument("--save", help="write all samples as JSON")
        module.add_arguments(command)
    options = parser.parse_args(arguments)
    described = measure.machine()
    text, samples = modules[options.command].main(
        Work(str(Path(options.work).resolve()), options.data), options
    )
    sys.stdout.write(f"{described}; {options.rounds} rounds\n\n{text}\n")
    if options.save:
        found = {name: [asdict(sample) for sample in taken] for name, taken in samples.items()}
        Path(options.save).write_text(
            json.dumps({"machine": described, "samples": found}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
