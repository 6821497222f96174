"""What the verb fill-mask does, once torch is there: find the masks, ask the model, write the answers into the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from model.checkpoint import held, load
from model.families.config import ways
from model.families.models import restore
from model.use.fill_mask import FillMaskConfig
from model.use.requests import Request, shortened
from model.use.serve import Verb
from pipeline import tokenizer
from pipeline.core.errors import UsageError
from pipeline.tokenizer.tokenizer import Tokenizer

Candidate = dict[str, str | float]

MASK = "[MASK]"  # what users type, whatever the tokenizer's own name of it is
BATCH = 64  # texts that the model reads at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One text as the model reads it: `ids` with special tokens, and which of them are masks."""

    text: str
    ids: tuple[int, ...]
    masks: tuple[int, ...]


class Filler:
    """A checkpoint in memory that fills masks.

    Raises:
        UsageError: the checkpoint cannot fill masks.
        DataError: there is no checkpoint at that path, or it is damaged.
    """

    def __init__(self, checkpoint: str) -> None:
        with held(checkpoint) as directory:
            loaded = load(directory)
            self.pieces = tokenizer.load(loaded.tokenizer)
        if "masked_lm" not in loaded.heads:
            remedy = "use `cloze generate`" if "lm" in loaded.heads else "name a pretrained checkpoint"
            raise UsageError(f"{checkpoint} has no masked_lm head (it has {', '.join(loaded.heads)}); {remedy}")
        names = ways(loaded.heads)
        if set(names) == {"clm"}:
            raise UsageError(
                f"{checkpoint} was trained from left to right alone (clm) and fills no masks; use `cloze generate`"
            )
        self._before = int("mntp" in names)  # how far before a mask its token is named
        self.mask_token = str(self.pieces.backend.id_to_token(self.pieces.special.mask))
        self.longest = loaded.model.max_position_embeddings
        self.model = restore(loaded.model, loaded.state)

    def fill(self, text: str, top_k: int) -> list[list[Candidate]]:
        """The `top_k` likeliest pieces for each mask of one text.

        Each mask is filled alone: the model sees the other masks of its text as masks, and so does `sequence`.

        Returns:
            One list a mask of {"token": the piece as text, "score": its probability, "sequence": the text with it in place}.

        Raises:
            UsageError: a text without a mask, or longer than the model reads.
        """
        return self.answer([self.question(text)], top_k)[0]

    def question(self, text: str) -> Question:
        """The text as the model reads it.

        Raises:
            UsageError: as for `fill`.
        """
        text, special = text.replace(MASK, self.mask_token), self.pieces.special
        ids = (special.cls, *self.pieces.backend.encode(text, add_special_tokens=False).ids, special.sep)
        masks = tuple(place for place, token in enumerate(ids) if token == special.mask)
        if not masks:
            raise UsageError(f"the text {shortened(text)!r} has no {MASK}; write it where a word is to be filled in")
        if len(ids) > self.longest:
            raise UsageError(f"the text {shortened(text)!r} has {len(ids)} pieces, the model reads {self.longest}; shorten it")
        return Question(text=text, ids=ids, masks=masks)

    def answer(self, questions: Sequence[Question], top_k: int) -> list[list[list[Candidate]]]:
        """For each question what `fill` gives; texts of like length go through the model together, `BATCH` at once."""
        answers: list[list[list[Candidate]]] = [[] for _ in questions]
        order = sorted(range(len(questions)), key=lambda number: -len(questions[number].ids))
        for at in range(0, len(order), BATCH):
            chosen = order[at : at + BATCH]
            candidates = iter(self._asked([questions[number] for number in chosen], top_k))
            for number in chosen:
                answers[number] = [next(candidates) for _ in questions[number].masks]
        return answers

    def _asked(self, questions: Sequence[Question], top_k: int) -> list[list[Candidate]]:
        """The candidates of all masks of the questions, in their order."""
        longest = max(len(question.ids) for question in questions)
        ids = np.full((len(questions), longest), self.pieces.special.pad, dtype=np.int64)
        real = np.arange(longest) < np.array([[len(question.ids)] for question in questions])
        for row, question in enumerate(questions):
            ids[row, : len(question.ids)] = question.ids
        masks = [row * longest + place - self._before for row, question in enumerate(questions) for place in question.masks]
        batch = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(real),
            "token_type_ids": torch.zeros(ids.shape, dtype=torch.int64),
            "masked_positions": torch.tensor(masks),
        }
        with torch.inference_mode():
            probabilities = self.model(batch)["mlm_logits"].float().softmax(dim=-1)
            best = probabilities.topk(min(top_k, probabilities.shape[-1]), dim=-1)
        found = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        places = ((question.text, number) for question in questions for number in range(len(question.masks)))
        return [
            [
                _candidate(text, self.mask_token, number, token, score, self.pieces)
                for token, score in zip(tokens, scores, strict=True)
            ]
            for (text, number), (scores, tokens) in zip(places, found, strict=True)
        ]


class FillMask(Verb[Question]):
    """The verb: `predictions` of a text, one list a mask, see `Filler.fill`."""

    def __init__(self, checkpoint: str, config: FillMaskConfig) -> None:
        self._filler, self._top_k = Filler(checkpoint), config.top_k

    def read(self, request: Request) -> Question:
        with request.blamed():
            return self._filler.question(request.text("text"))

    def answer(self, group: Sequence[Question]) -> list[dict[str, Any]]:
        return [{"predictions": found} for found in self._filler.answer(group, self._top_k)]


def _candidate(text: str, mask_token: str, number: int, token: int, score: float, pieces: Tokenizer) -> Candidate:
    name = str(pieces.backend.id_to_token(token) or "")
    word = name if token in pieces.special.ids else str(pieces.backend.decode([token], skip_special_tokens=False)).strip()
    return {"token": word, "score": score, "sequence": _filled(text, mask_token, number, word)}


def _filled(text: str, mask_token: str, number: int, word: str) -> str:
    """`text` with its mask of that number replaced; a piece that goes on (`##ing`) joins the word before it."""
    parts = text.split(mask_token)
    before, after = mask_token.join(parts[: number + 1]), mask_token.join(parts[number + 1 :])
    if word.startswith("##") and len(word) > 2:
        before, word = before.rstrip(), word[2:]
    return before + word + after
