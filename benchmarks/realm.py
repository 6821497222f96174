"""REALM: masked entities of held-out rows with retrieved passages, with random ones, without any.

    python -m benchmarks.realm --dataset W/dataset --index W/index --retriever W/ict \
        --realm W/realm-1 W/realm-2 --closed W/closed-1 W/closed-2 [--rows 400] [--passages 2]

`--realm` names trainings with `cloze pretrain --retrieve`, `--closed` their twins without. Each
REALM checkpoint is scored three times with the same weights: as trained; with random passages in
place of those that it would retrieve; and with the empty passage alone. Loss in nats per token of
the entities and dates.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.labs.retrieval.realm import RetrievalModule, load_retrieval
from cloze.model import checkpoint
from cloze.model.data.shards import ShardedRows
from cloze.model.families.models import load_model, new_model
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.heldout import HeldoutSet, evaluate
from cloze.model.train.evaluate.scoring import PretrainModule

ROW = "| {name} | {how} | {loss:.4f} | {accuracy:.4f} |"


class Variants(RetrievalModule):
    """A module that reads other passages than those it would retrieve."""

    how = "retrieved"

    def search(self, questions: Tensor, excluded: Tensor) -> Tensor:
        count, wanted = self.retrieval.passages.count, self.retrieval.options.passages
        if self.how == "retrieved":
            return super().search(questions, excluded)
        if self.how == "none":
            return torch.full((len(questions), wanted), count)
        generator = torch.Generator().manual_seed(int(excluded.sum()))
        numbers = torch.rand(len(questions), count, generator=generator)
        places = torch.arange(count)
        own = (places >= excluded[:, :1]) & (places < excluded[:, 1:])
        return numbers.masked_fill(own, -1).topk(wanted).indices


def rows_of(dataset: str, rows: int) -> HeldoutSet:
    shards = ShardedRows(dataset, "heldout")
    assert shards.info is not None
    return HeldoutSet(
        shards=shards, rows=min(rows, len(shards)), batch=8, pad=0, mask=4,
        longest=shards.info.length,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("dataset", "index", "retriever"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--realm", nargs="+", default=[])
    parser.add_argument("--closed", nargs="+", default=[])
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--passages", type=int, default=2)
    arguments = parser.parse_args()
    held = rows_of(arguments.dataset, arguments.rows)
    print(f"{held.rows} held-out rows\n\n| training | passages | loss | accuracy |")
    print("|---|---|---|---|")
    inputs = {"index": arguments.index, "retriever": arguments.retriever}
    for path in arguments.realm:
        loaded = checkpoint.load(path)
        directory = sorted(Path(path).glob("checkpoints/step-*"))[-1]
        build = BuildContext(path="", inputs=inputs, fingerprint="", execution=Execution())
        found = load_retrieval(
            PretrainConfig.model_validate({"retrieval": {"passages": arguments.passages}}), build, loaded.model,
            held.shards.info, loaded.tokenizer, ("mlm",),
        )  # fmt: skip
        assert found is not None
        network = new_model(loaded.model)
        found.extend(network)
        weights = checkpoint.weights(str(directory))
        network.load_state_dict({name: weights[name] for name in weights})
        module, losses = Variants(network, found, "fp32"), {}
        for module.how in ("none", "retrieved", "random"):
            losses[module.how] = score(Path(path).name, module.how, module, held)
            if module.how != "none":
                print(f"| | {difference(losses[module.how], losses['none'])} | | |", flush=True)
    for path in arguments.closed:
        loaded = checkpoint.load(path)
        module = PretrainModule(load_model(loaded.model, loaded.state), ("mlm",), "fp32")
        score(Path(path).name, "closed book", module, held)


def score(name: str, how: str, module: PretrainModule, held: HeldoutSet) -> np.ndarray:
    """Print loss and accuracy; return predictions and loss of each batch, float64 [batches, 2]."""
    groups: list[tuple[float, float]] = []
    metrics = evaluate(module, held, World(0, 1, torch.device("cpu")), groups=groups)
    loss, accuracy = metrics["heldout_loss"], metrics["heldout_accuracy"]
    print(ROW.format(name=name, how=how, loss=loss, accuracy=accuracy), flush=True)
    return np.array(groups)


def difference(groups: np.ndarray, others: np.ndarray) -> str:
    """Return the difference of two mean losses, with its jackknife standard error over batches."""
    counts, gaps = groups[:, 0], groups[:, 1] - others[:, 1]
    mean, size = gaps.sum() / counts.sum(), len(gaps)
    without = (gaps.sum() - gaps) / (counts.sum() - counts)
    error = np.sqrt((size - 1) / size * ((without - without.mean()) ** 2).sum())
    return f"{mean:+.4f} ± {error:.4f} against none"


if __name__ == "__main__":
    main()
