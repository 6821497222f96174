"""What the stage fill-mask does, once torch is there: find the masks, ask the model, write the answers into the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from model.checkpoint import held, load
from model.families.models import restore
from pipeline import tokenizer
from pipeline.core.errors import UsageError
from pipeline.tokenizer.tokenizer import Tokenizer

Candidate = dict[str, str | float]

MASK = "[MASK]"  # what users type, whatever the tokenizer's own name of it is


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
            raise UsageError(
                f"{checkpoint} has no masked_lm head (it has {', '.join(loaded.heads)}); name a pretrained checkpoint"
            )
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
        question = _question(text.replace(MASK, self.mask_token), self.pieces, self.longest)
        ids = torch.tensor([question.ids])
        batch = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "masked_positions": torch.tensor(question.masks)}
        with torch.inference_mode():
            probabilities = self.model(batch)["mlm_logits"].float().softmax(dim=-1)
            best = probabilities.topk(min(top_k, probabilities.shape[-1]), dim=-1)
        return [
            [
                _candidate(question.text, self.mask_token, number, token, score, self.pieces)
                for token, score in zip(tokens, scores, strict=True)
            ]
            for number, (scores, tokens) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        ]


def fill(checkpoint: str, texts: Sequence[str], top_k: int) -> list[list[Candidate]]:
    """The candidates of all masks, in the order of the texts and of the masks in them, see `Filler`."""
    filler = Filler(checkpoint)
    # one by one: texts are few, and padding could change the last digit
    return [candidates for text in texts for candidates in filler.fill(text, top_k)]


def _question(text: str, pieces: Tokenizer, longest: int) -> Question:
    ids = (pieces.special.cls, *pieces.backend.encode(text, add_special_tokens=False).ids, pieces.special.sep)
    masks = tuple(place for place, token in enumerate(ids) if token == pieces.special.mask)
    if not masks:
        raise UsageError(f"the text {_shortened(text)!r} has no {MASK}; write it where a word is to be filled in")
    if len(ids) > longest:
        raise UsageError(f"the text {_shortened(text)!r} has {len(ids)} pieces, the model reads {longest}; shorten it")
    return Question(text=text, ids=ids, masks=masks)


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


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
