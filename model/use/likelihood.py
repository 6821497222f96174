"""The stage likelihood: bits per byte of held-out texts, which compares different vocabularies.

A model of left-to-right text gives each text a probability. A masked language model gives a
pseudo-log-likelihood (Salazar et al. 2020), the sum over tokens of the log-probability of each one
when masked. Divided by UTF-8 bytes, neither depends on the number of tokens. Three rules keep the
vocabulary out of the comparison:

- The texts, their words and the sample depend on the text alone. A text longer than the model reads
  is scored in windows, and none is left out.
- With the mask `word-l2r` (Kauf and Ivanova 2023), the tokens of a word are predicted from left to
  right without the rest of the word, so the word's probability is a product by the chain rule. With
  `token`, the other tokens of the word are visible, which favours vocabularies of short tokens.
- A byte that the tokens do not show, because its word became [UNK] or its character was dropped,
  costs `UNKNOWN_BITS` in addition to the token: the cost of writing it out. Otherwise one likely
  [UNK] would pay for a whole word.

Lost case and accents are not counted, but reported: compare only models that both keep or lose
them, and only scores of one method.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloze.core import storage
from cloze.core.artifacts.artifact import HELDOUT
from cloze.core.errors import DataError, UsageError
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.core.words import split_words
from cloze.model.tasks.files import METRICS_FILE, documents, write_json
from cloze.model.tasks.formats.lines import text_lines
from cloze.model.train.distributed import init_distributed
from cloze.model.train.precision import resolve
from cloze.model.use.configs import LikelihoodConfig
from cloze.model.use.masked_copies import Bools
from cloze.model.use.scorer import Floats, SentenceScorer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

TEXTS = "texts.jsonl"
UNKNOWN_BITS = 8.0  # per byte that the tokens do not show
WINDOWS = 256  # scored at once


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutText:
    """A text. `document`: texts with the same one are resampled together; `where`: its origin."""

    text: str
    document: int
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedText:
    """Tokens of a text, int32 [n]; the first ones of its words, bool [n]; bytes that they hide."""

    tokens: npt.NDArray[np.int32]
    starts: Bools
    unknown_tokens: int
    hidden_bytes: int

    def windows(self, room: int) -> Iterator[tuple[npt.NDArray[np.int32], Bools]]:
        """Cut the text into parts of at most `room` tokens, before a word if possible."""
        begin = 0
        while begin < len(self.tokens):
            end = begin + room
            if end < len(self.tokens):
                borders = np.flatnonzero(self.starts[begin + 1 : end + 1])
                end = begin + 1 + int(borders[-1]) if len(borders) else end
            yield self.tokens[begin:end], self.starts[begin:end]
            begin = end


def encode(texts: Sequence[str], tokenizer: Tokenizer) -> list[EncodedText]:
    """Return the tokens of texts, with the words of `cloze.core.words.split_words`."""
    encoded = []
    for text, (ids, spans) in zip(texts, tokenizer.encode_with_offsets(texts), strict=True):
        word = np.zeros(len(text) + 1, np.int64)  # number of words up to a character
        end = 0
        for part in split_words(text):
            begin = text.index(part, end)
            word[begin], end = 1, begin + len(part)
        word = np.cumsum(word)
        # A token belongs to the word of its last character.
        last = np.where(spans[:, 1] > spans[:, 0], spans[:, 1] - 1, spans[:, 1])
        starts = np.diff(word[last], prepend=-1) != 0
        tokens = np.array(ids, np.int32)
        is_unknown = tokens == tokenizer.special.unk
        shown = np.zeros(len(text), np.bool_)
        for begin, end in spans[~is_unknown].tolist():
            shown[begin:end] = True
        hidden = "".join(
            character
            for character, is_shown in zip(text, shown.tolist(), strict=True)
            if not is_shown and not character.isspace()
        )
        encoded.append(
            EncodedText(
                tokens=tokens,
                starts=starts,
                unknown_tokens=int(is_unknown.sum()),
                hidden_bytes=len(hidden.encode()),
            )
        )
    return encoded


def read_texts(path: str) -> Iterator[HeldoutText]:
    """Iterate over the lines of a text file that are not empty."""
    for number, line in text_lines(path):
        if text := line.strip():
            yield HeldoutText(text=text, document=number, where=f"line {number}")


def heldout_sentences(corpus: str) -> Iterator[HeldoutText]:
    """Iterate over the sentences of a corpus's held-out documents."""
    for key, sentences in documents(corpus, ("key", "sentences"), split=HELDOUT):
        for number, text in enumerate(sentences):
            if text.strip():
                where = f"document {key:#018x}, sentence {number}"
                yield HeldoutText(text=text, document=key, where=where)


def sample(texts: Iterator[HeldoutText], limit: int, seed: int) -> list[HeldoutText]:
    """Return the `limit` distinct texts with the smallest hashes, in the order of the hashes."""
    key = seed.to_bytes(8, "little")
    smallest: dict[bytes, HeldoutText] = {}
    for text in texts:
        digest = hashlib.blake2b(text.text.encode(), digest_size=16, key=key).digest()
        smallest.setdefault(digest, text)
        if len(smallest) > 2 * limit:
            smallest = dict(sorted(smallest.items())[:limit])
    return [text for _, text in sorted(smallest.items())[:limit]]


def run(config: LikelihoodConfig, build: BuildContext) -> StageResult:
    """Compute bits per byte of a sample of texts.

    Raises:
        UsageError: neither texts nor corpus are given, or the checkpoint has no language-model
            head.
        DataError: checkpoint or texts are missing or damaged, or there is no held-out text.
    """
    source = config.texts or build.inputs.get("corpus")
    if source is None:
        raise UsageError(
            "likelihood needs held-out texts (found none); name a corpus with --corpus, or a file "
            "of texts with --texts"
        )
    world = init_distributed(build.execution)
    scorer = SentenceScorer(
        build.inputs["checkpoint"],
        mask=config.mask,
        precision=resolve(config.precision, world.device),
        device=world.device,
    )
    texts = sample(
        read_texts(source) if config.texts else heldout_sentences(source), config.limit, config.seed
    )
    if not texts:
        raise DataError(
            f"{source} has no held-out text; give a file with a text per line, or set "
            f"corpus.heldout_fraction above 0"
        )
    encoded = encode([text.text for text in texts], scorer.pieces)
    bits = -_log_likelihoods(scorer, encoded, build) / math.log(2)
    bits += UNKNOWN_BITS * np.array([text.hidden_bytes for text in encoded])
    sizes = np.array([len(text.text.encode()) for text in texts], np.int64)
    rows = (
        {
            "text": text.text,
            "from": text.where,
            "bytes": size,
            "bits": round(cost, 6),
            "tokens": len(tokens.tokens),
            "unknown_tokens": tokens.unknown_tokens,
            "hidden_bytes": tokens.hidden_bytes,
        }
        for text, tokens, size, cost in zip(
            texts, encoded, sizes.tolist(), bits.tolist(), strict=True
        )
    )
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    storage.write_bytes(build.file(TEXTS), lines.encode())
    total = {
        "bytes": int(sizes.sum()),
        "tokens": sum(len(text.tokens) for text in encoded),
        "unknown_tokens": sum(text.unknown_tokens for text in encoded),
        "hidden_bytes": sum(text.hidden_bytes for text in encoded),
        "texts_with_hidden_bytes": sum(text.hidden_bytes > 0 for text in encoded),
    }
    digest = hashlib.sha256("\n".join(text.text for text in texts).encode()).hexdigest()
    summary: dict[str, Any] = {
        "metrics": {"bits_per_byte": float(bits.sum() / total["bytes"])},
        "interval": {
            "bits_per_byte": list(
                interval(
                    bits, sizes, [text.document for text in texts], config.seed, config.resamples
                )
            )
        },
        "texts": len(texts),
        **total,
        "texts_sha256": digest,  # equal for models that are comparable
        "method": {
            "mask": None if scorer.left_to_right else config.mask,
            "unknown_bits": UNKNOWN_BITS,
            "lowercase": scorer.pieces.lowercase,
            "strips_accents": scorer.pieces.strips_accents,
        },
    }
    write_json(build.file(METRICS_FILE), summary)
    build.counters["read/texts"] += len(texts)
    summary |= {
        "precision": scorer.precision,
        "device": scorer.device.type,
        "parameters": scorer.parameters,
    }
    return StageResult(rows=len(texts), tokens=total["tokens"], summary=summary)


def _log_likelihoods(
    scorer: SentenceScorer, encoded: Sequence[EncodedText], build: BuildContext
) -> Floats:
    """Return the log-likelihood of each text in nats, float64 [n]."""
    windows = [
        (number, *window)
        for number, text in enumerate(encoded)
        for window in text.windows(scorer.longest - 2)
    ]
    totals = np.zeros(len(encoded))
    for begin in range(0, len(windows), WINDOWS):
        numbers, tokens, starts = zip(*windows[begin : begin + WINDOWS], strict=True)
        scores = scorer.log_probabilities(tokens, starts)
        np.add.at(totals, list(numbers), [float(score.sum()) for score in scores])
        build.report.progress(numbers[-1] + 1, len(encoded), "texts", {})
    return totals


def interval(
    bits: Floats, sizes: I64, documents: Sequence[int], seed: int, resamples: int
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of bits per byte, over whole documents.

    Args:
        bits: float64 [n], cost of each text.
        sizes: int64 [n], bytes of each text.
        documents: n documents; texts of one are not independent.
    """
    _, document = np.unique(np.array(documents, np.uint64), return_inverse=True)
    document_bits = np.bincount(document, weights=bits)
    document_bytes = np.bincount(document, weights=sizes)
    count = len(document_bits)
    generator = np.random.Generator(np.random.PCG64(seed))
    ratios = []
    for _ in range(resamples):
        drawn = generator.integers(0, count, count)
        ratios.append(document_bits[drawn].sum() / document_bytes[drawn].sum())
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
