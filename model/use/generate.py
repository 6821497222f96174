"""A left-to-right checkpoint in memory that goes on with texts, and the verb generate over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model import checkpoint
from model.families.config import ways
from model.families.models import restore
from model.layers.decoding import Decoding
from model.use.generate_stage import GenerateConfig
from model.use.requests import Request, shortened
from model.use.serve import Verb
from pipeline import tokenizer
from pipeline.core import random_keys
from pipeline.core.errors import UsageError

TOKENS = 8192  # of a batch, written ones included: their keys and values are in memory
_DRAWN = 6  # random stream

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How the next token is chosen from the logits.

    Attributes:
        temperature: logits are divided by it; 0: the likeliest token, the first of equals.
        top_k: how many of the likeliest tokens are drawn from; None: all.
        top_p: of those, the fewest that have this probability together (Holtzman et al., "The Curious Case of Neural Text
            Degeneration", 2020); None: all.
        seed: of chance.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 1

    def token(self, logits: Floats, key: npt.ArrayLike) -> int:
        """The next token. Args: logits: float64 [V]; key: what it draws by."""
        if self.temperature == 0.0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")[: self.top_k]
        chances = np.exp((logits[order] - logits[order[0]]) / self.temperature)
        sums = chances.cumsum() / chances.sum()
        if self.top_p is not None:
            sums = sums[: int(np.searchsorted(sums, self.top_p)) + 1]
        drawn = float(random_keys.uniform(random_keys.derive(self.seed, _DRAWN, key))) * sums[-1]
        return int(order[min(int(np.searchsorted(sums, drawn, side="right")), len(sums) - 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How a text goes on.

    Attributes:
        text: the beginning and what was written, as the tokenizer spells them.
        continuation: what was written alone.
        ids: its tokens, without the one that ends a text.
        stopped: why it is no longer: the text came to its `end`, the `tokens` that were asked for are there, or the `model` reads no
            more.
    """

    text: str
    continuation: str
    ids: tuple[int, ...]
    stopped: Literal["end", "tokens", "model"]


@dataclass(slots=True, kw_only=True)
class _Row:
    """A text on its way: its tokens so far, how many of them were given, and what chance depends on."""

    ids: list[int]
    given: int
    key: int
    stopped: Literal["end", "tokens", "model"] | None = None


class Generator:
    """A checkpoint that goes on with texts, on the CPU in fp32.

    Raises:
        UsageError: the checkpoint does not read from left to right.
        DataError: there is no checkpoint at that path, or it is damaged.
    """

    def __init__(self, path: str) -> None:
        with checkpoint.held(path) as directory:
            loaded = checkpoint.load(directory)
            self.pieces = tokenizer.load(loaded.tokenizer)
        names = ways(loaded.heads)
        if not {"lm", "clm"} & set(names):
            raise UsageError(_refusal(path, loaded.heads))
        network: Any = restore(loaded.model, loaded.state)
        self.longest = loaded.model.max_position_embeddings
        self._encoder: nn.Module = network.encoder
        self._head: nn.Module = network.lm if "lm" in names else network.masked_lm

    def question(self, text: str) -> list[int]:
        """The beginning of a text as the model reads it.

        Raises:
            UsageError: it is empty, or so long that the model could write nothing behind it.
        """
        ids = self.pieces.encode_batch([text])[0]
        if not len(ids):
            raise UsageError(f"the text {shortened(text)!r} has no words in it; begin it with a word")
        if len(ids) + 2 > self.longest:
            raise UsageError(
                f"the text {shortened(text)!r} has {len(ids)} pieces, the model reads {self.longest} with those it writes and [CLS];"
                " shorten it"
            )
        return [self.pieces.special.cls, *map(int, ids)]

    def generate(
        self, texts: Sequence[str], *, tokens: int, samples: int = 1, choice: Choice | None = None
    ) -> list[list[Continuation]]:
        """`samples` continuations of each text.

        Args:
            tokens: the most to write.
            choice: by default the likeliest token each time.

        Raises:
            UsageError: a text is empty or too long; see `question`.
        """
        choice = choice or Choice()
        asked = [self.question(text) for text in texts]
        keys = [random_keys.document_key(text) for text in texts]
        rows = [
            _Row(ids=list(ids), given=len(ids), key=int(random_keys.derive(key, sample)))
            for ids, key in zip(asked, keys, strict=True)
            for sample in range(samples)
        ]
        order = sorted(range(len(rows)), key=lambda number: -rows[number].given)
        while order:
            longest = min(self.longest, rows[order[0]].given + tokens)
            size = max(1, TOKENS // longest)
            self._write([rows[number] for number in order[:size]], tokens, choice)
            order = order[size:]
        found = [self._told(row) for row in rows]
        return [found[first : first + samples] for first in range(0, len(found), samples)]

    @torch.inference_mode()
    def _write(self, rows: Sequence[_Row], tokens: int, choice: Choice) -> None:
        """Write behind each of the rows, the longest first, until all have stopped."""
        given = torch.tensor([row.given for row in rows])
        most = int(given.max())
        room = min(self.longest, most + tokens)
        layout = Decoding(len(rows), room)
        ids = torch.full((len(rows), most), self.pieces.special.pad)
        for number, row in enumerate(rows):
            ids[number, : row.given] = torch.tensor(row.ids)
        logits = self._logits(ids, layout.step(torch.arange(most).expand_as(ids), most), given - 1)
        for written in range(1, tokens + 1):
            for row, scores in zip(rows, logits.double().numpy(), strict=True):
                if row.stopped is None:
                    self._add(row, choice.token(scores, random_keys.derive(row.key, written)), tokens)
            if all(row.stopped for row in rows):
                return
            last = torch.tensor([[row.ids[-1]] for row in rows])  # of a row that has stopped again and again, read by nobody
            places = (given + written - 1).clamp(max=room - 1)
            logits = self._logits(last, layout.step(places[:, None], min(room, most + written)), torch.zeros_like(given))

    def _add(self, row: _Row, token: int, tokens: int) -> None:
        if token == self.pieces.special.sep:
            row.stopped = "end"
            return
        row.ids.append(token)
        if len(row.ids) - row.given == tokens:
            row.stopped = "tokens"
        elif len(row.ids) == self.longest:
            row.stopped = "model"

    def _logits(self, ids: Tensor, layout: Decoding, last: Tensor) -> Tensor:
        """Of the token behind the `last`, int64 [B], of the new ones in each row: float [B, V]. Args: ids: int64 [B, l]."""
        wanted = torch.arange(len(ids)) * ids.shape[1] + last
        states = self._encoder(ids, None, torch.zeros_like(ids), layout, wanted)
        logits: Tensor = self._head(states, self._encoder.get_parameter("embeddings.word.weight"))
        return logits

    def _told(self, row: _Row) -> Continuation:
        def spelled(ids: Sequence[int]) -> str:
            return str(self.pieces.backend.decode(list(ids), skip_special_tokens=True))

        before, text, own = spelled(row.ids[: row.given]), spelled(row.ids), tuple(row.ids[row.given :])
        continuation = text[len(before) :] if text.startswith(before) else spelled(own)
        assert row.stopped is not None
        return Continuation(text=text, continuation=continuation, ids=own, stopped=row.stopped)


def settled(config: GenerateConfig) -> Choice:
    """The choice that the options ask for.

    Raises:
        UsageError: they ask for chance and for the likeliest token alike.
    """
    chance = {"samples": config.samples if config.samples > 1 else None, "top_k": config.top_k, "top_p": config.top_p}
    asked = {name: value for name, value in chance.items() if value is not None}
    if config.temperature == 0.0 and asked:
        name, value = next(iter(asked.items()))
        raise UsageError(
            f"{name} ({value}) draws by chance, temperature (0) takes the likeliest token each time; leave one of them out"
        )
    temperature = config.temperature if config.temperature is not None else float(bool(asked))
    return Choice(temperature=temperature, top_k=config.top_k, top_p=config.top_p, seed=config.seed)


def told(found: Continuation) -> dict[str, Any]:
    """A continuation as a JSON object."""
    return {
        "text": found.text,
        "continuation": found.continuation,
        "tokens": len(found.ids),
        "stopped": found.stopped,
    }


class Generate(Verb[str]):
    """The verb: of each text its `continuations`, see `Continuation`."""

    def __init__(self, checkpoint: str, config: GenerateConfig) -> None:
        self._choice, self._config = settled(config), config
        self._generator = Generator(checkpoint)

    def read(self, request: Request) -> str:
        text = request.text("text")
        with request.blamed():
            self._generator.question(text)
        return text

    def answer(self, group: Sequence[str]) -> list[dict[str, Any]]:
        found = self._generator.generate(group, tokens=self._config.tokens, samples=self._config.samples, choice=self._choice)
        return [{"text": text, "continuations": [told(one) for one in own]} for text, own in zip(group, found, strict=True)]


def _refusal(path: str, heads: Any) -> str:
    if "masked_lm" in heads:
        return (
            f"{path} fills masks and does not read from left to right; use `cloze fill-mask`, or name a checkpoint of gpt2, ltr or the"
            " objective clm"
        )
    return f"{path} has no lm head (it has {', '.join(heads)}); name a pretrained gpt2 or ltr checkpoint"
