"""Scoring minimal pairs: `cloze score` beside plain loops over the same weights.

    python -m benchmarks.score --checkpoint W/pretrain --data BLIMP [--pairs 200] [--threads 2]
    [--rounds 3]

A plain loop takes one sentence after the other, its masked copies as a batch, and computes the
vocabulary's logits at every position: with transformers' BertForMaskedLM over the exported
checkpoint, and with our own model. Ours are the stage's scorer in fp32, its default, and in bf16
where the hardware multiplies that. Each round runs every variant once over the same sentences, a
sample of all phenomena; medians over the rounds, by wall clock and by CPU time. Scores must be
equal to 1e-3 nats in fp32, and every pair be judged alike.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch

from cloze.model import checkpoint
from cloze.model.families.models import load_model
from cloze.model.hub.write import write_directory
from cloze.model.tasks.formats.contrasts import Contrast, read_contrasts
from cloze.model.train.precision import native_bf16
from cloze.model.use.scorer import Floats, SentenceScorer
from cloze.model.use.scoring import correct
from cloze.pipeline import tokenizer

EQUAL = 1e-3  # nats of a sentence's score
WARM_UP = 10  # pairs

Score = Callable[[list[Contrast]], Floats]  # the pairs' scores, float64 [n, 2]


def texts_of(pairs: list[Contrast]) -> list[str]:
    return [text for pair in pairs for text in pair.sentences]


def theirs(path: str) -> Score:
    """A plain loop with transformers over the exported checkpoint."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as directory:
        write_directory(checkpoint.load(path), directory)
        pieces = AutoTokenizer.from_pretrained(directory)
        model = AutoModelForMaskedLM.from_pretrained(directory).eval()

    @torch.inference_mode()
    def run(pairs: list[Contrast]) -> Floats:
        scores = []
        for text in texts_of(pairs):
            ids = torch.tensor(pieces(text)["input_ids"])
            places = torch.arange(1, len(ids) - 1)
            copies = ids.repeat(len(places), 1)
            copies[torch.arange(len(places)), places] = pieces.mask_token_id
            found = model(input_ids=copies).logits.log_softmax(dim=-1)
            scores.append(float(found[torch.arange(len(places)), places, ids[places]].sum()))
        return np.array(scores).reshape(-1, 2)

    return run


def plain(path: str) -> Score:
    """The same loop with our model."""
    loaded = checkpoint.load(path)
    pieces = tokenizer.load(loaded.tokenizer)
    model = load_model(loaded.model, loaded.state)

    @torch.inference_mode()
    def run(pairs: list[Contrast]) -> Floats:
        scores = []
        for text in texts_of(pairs):
            ids = torch.tensor(
                [pieces.special.cls, *pieces.encode_batch([text])[0], pieces.special.sep]
            )
            places = torch.arange(1, len(ids) - 1)
            copies = ids.repeat(len(places), 1)
            copies[torch.arange(len(places)), places] = pieces.special.mask
            everywhere = torch.arange(copies.numel())
            batch = {
                "input_ids": copies,
                "token_type_ids": torch.zeros_like(copies),
                "masked_positions": everywhere,
            }
            found = model(batch)["mlm_logits"].view(*copies.shape, -1).log_softmax(dim=-1)
            scores.append(float(found[torch.arange(len(places)), places, ids[places]].sum()))
        return np.array(scores).reshape(-1, 2)

    return run


def ours(path: str, fast: bool) -> Score:
    """Return the stage's scorer. Args: fast: bf16 instead of fp32."""
    scorer = SentenceScorer(path, precision="bf16" if fast else "fp32")

    def run(pairs: list[Contrast]) -> Floats:
        return np.array([found.score() for found in scorer.scored(texts_of(pairs))]).reshape(-1, 2)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument(
        "--pairs", type=int, default=200, help="about this many, of all phenomena alike"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-plain", action="store_true", help="leave our own plain loop out")
    parser.add_argument("--no-fp32", action="store_true", help="leave ours in fp32 out")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    every = read_contrasts(given.data)
    pairs = every[:: max(1, len(every) // given.pairs)]
    variants = {
        "transformers, plain loop, fp32": theirs(given.checkpoint),
        **({} if given.no_plain else {"ours, plain loop, fp32": plain(given.checkpoint)}),
        **({} if given.no_fp32 else {"cloze score, fp32": ours(given.checkpoint, False)}),
    }
    if native_bf16(torch.device("cpu")):
        variants["cloze score, bf16"] = ours(given.checkpoint, True)
    walls: dict[str, list[float]] = {name: [] for name in variants}
    cpus: dict[str, list[float]] = {name: [] for name in variants}
    scores: dict[str, Floats] = {}
    for run in variants.values():
        run(pairs[:WARM_UP])
    for _ in range(given.rounds):
        for name, run in variants.items():
            wall, cpu = time.perf_counter(), time.process_time()
            scores[name] = run(pairs)
            walls[name].append(time.perf_counter() - wall)
            cpus[name].append(time.process_time() - cpu)
    reference = next(iter(variants))
    print(
        f"{platform.processor() or platform.machine()}, {given.threads} threads, torch "
        f"{torch.__version__}, {len(pairs)} pairs"
    )
    print(
        "| | pairs/s | × by wall clock | × by CPU time | greatest difference, nats | pairs judged "
        "otherwise |"
    )
    print("|---|---|---|---|---|---|")
    for name in variants:
        wall, cpu = statistics.median(walls[name]), statistics.median(cpus[name])
        wall_ratio, cpu_ratio = (
            statistics.median(walls[reference]) / wall,
            statistics.median(cpus[reference]) / cpu,
        )
        error = float(np.abs(scores[name] - scores[reference]).max())
        otherwise = int(
            (correct(scores[name].tolist()) != correct(scores[reference].tolist())).sum()
        )
        print(
            f"| {name} | {len(pairs) / wall:.1f} | {wall_ratio:.2f} | {cpu_ratio:.2f} | "
            f"{error:.1e} | {otherwise} |"
        )
        if otherwise or ("bf16" not in name and error > EQUAL):
            raise SystemExit(f"{name} does not give the scores of {reference}")


if __name__ == "__main__":
    main()
