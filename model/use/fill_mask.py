"""The command fill-mask: predictions for the masks of a text, and closed-book probes.

A probe is a request in LAMA's format (Petroni et al. 2019): its text has one mask, and `obj_label`
is the right word. The answer then has the word's rank among all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cloze.core.errors import UsageError
from cloze.model.checkpoint import load_with_tokenizer
from cloze.model.data.batch import move
from cloze.model.families.config import prediction_objectives
from cloze.model.families.models import load_model
from cloze.model.objectives import objectives
from cloze.model.train.precision import Precision, autocast, place, placement
from cloze.model.use.configs import FillMaskConfig
from cloze.model.use.request import Request, shortened
from cloze.model.use.verb import Verb

Candidate = dict[str, str | float]

MASK = "[MASK]"  # placeholder in requests, whatever the tokenizer's mask token is
BATCH = 64  # texts per forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Tokenized text: `ids` with special tokens, and the positions of its masks.

    Attributes:
        label: of a probe: the right token; -1: the right word is not one token.
        relation: of a probe: its relation.
    """

    text: str
    ids: tuple[int, ...]
    masks: tuple[int, ...]
    label: int | None = None
    relation: str | None = None


class FillMaskPipeline:
    """Masked-language-model checkpoint in memory.

    Args:
        checkpoint: checkpoint, or an artifact that contains one.
        device, precision: of the computation. Default: the CPU, fp32.

    Raises:
        UsageError: the checkpoint cannot fill masks.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(
        self, checkpoint: str, *, device: torch.device | None = None, precision: Precision = "fp32"
    ) -> None:
        loaded, self.pieces = load_with_tokenizer(checkpoint)
        if "masked_lm" not in loaded.heads:
            generates = {"lm", "seq2seq"} & loaded.heads.keys()
            remedy = "use `cloze generate`" if generates else "name a pretrained checkpoint"
            raise UsageError(
                f"{checkpoint} has no masked_lm head (it has {', '.join(loaded.heads)}); {remedy}"
            )
        loaded.require_trained("masked_lm")
        names = prediction_objectives(loaded.heads)
        if set(names) == {"clm"}:
            raise UsageError(
                f"{checkpoint} was trained from left to right alone (clm) and fills no masks; use "
                f"`cloze generate`"
            )
        # Distance from a mask back to the position that predicts it.
        self.before = int("mntp" in names)
        self.permuted = any(own.transform for own in objectives(names))
        self.mask_token = str(self.pieces.backend.id_to_token(self.pieces.special.mask))
        self._reader = self.pieces.backend_naming([self.mask_token])
        self.longest = loaded.model.max_position_embeddings
        self._device, self._precision = device or torch.device("cpu"), precision
        self.model = place(load_model(loaded.model, loaded.state), self._device, precision)

    def fill(self, text: str, top_k: int) -> list[list[Candidate]]:
        """Return the `top_k` most probable tokens for each mask of a text.

        Masks are filled independently: the others stay masks, also in `sequence`.

        Returns:
            For each mask, dicts of "token", its text; "score", its probability; "sequence", the
            filled text.

        Raises:
            UsageError: the text has no mask, or is longer than the model reads.
        """
        return self.answer([self.question(text)], top_k)[0]

    def question(self, text: str) -> Question:
        """Tokenize a text; raises as `fill`."""
        text, special = text.replace(MASK, self.mask_token), self.pieces.special
        ids = (special.cls, *self._reader.encode(text, add_special_tokens=False).ids, special.sep)
        masks = tuple(position for position, token in enumerate(ids) if token == special.mask)
        if not masks:
            raise UsageError(
                f"the text {shortened(text)!r} has no {MASK}; write it where a word is to be "
                f"filled in"
            )
        if len(ids) > self.longest:
            raise UsageError(
                f"the text {shortened(text)!r} has {len(ids)} pieces, the model reads "
                f"{self.longest}; shorten it"
            )
        return Question(text=text, ids=ids, masks=masks)

    def answer(self, questions: Sequence[Question], top_k: int) -> list[list[list[Candidate]]]:
        """Answer each question as `fill` does."""
        return [candidates for candidates, _ in self.ranked(questions, top_k)]

    def ranked(
        self, questions: Sequence[Question], top_k: int
    ) -> list[tuple[list[list[Candidate]], int | None]]:
        """Return each question's answer, and of a probe its label's rank among all tokens.

        `BATCH` texts of similar length run together. The rank of a label that is not one token is
        None.
        """
        answers: list[tuple[list[list[Candidate]], int | None]] = [([], None) for _ in questions]
        order = sorted(range(len(questions)), key=lambda number: -len(questions[number].ids))
        for begin in range(0, len(order), BATCH):
            group = [questions[number] for number in order[begin : begin + BATCH]]
            logits = self.logits(group)
            candidates = iter(self.candidates(group, logits, top_k))
            first = 0  # mask of the question, among those of the group
            for number, question in zip(order[begin:], group, strict=False):
                rank, label = None, question.label
                if label is not None and label >= 0:
                    rank = 1 + int((logits[first] > logits[first, label]).sum())
                answers[number] = [next(candidates) for _ in question.masks], rank
                first += len(question.masks)
        return answers

    def probe(self, text: str, word: str, relation: str) -> Question:
        """Tokenize a probe; raises as `fill`, and if the text has several masks."""
        question = self.question(text)
        if len(question.masks) > 1:
            raise UsageError(f"the probe {shortened(text)!r} has several masks; write one")
        ids, (mask,) = question.ids, question.masks
        filled = self._reader.encode(
            question.text.replace(self.mask_token, word), add_special_tokens=False
        ).ids
        token = filled[mask - 1] if len(filled) == len(ids) - 2 else -1
        same = (*ids[1:mask], token, *ids[mask + 1 : -1]) == tuple(filled)
        label = token if same and token not in self.pieces.special.ids else -1
        return replace(question, label=label, relation=relation)

    def logits(self, questions: Sequence[Question]) -> torch.Tensor:
        """Return the logits of all masks of the questions, in order: float32 [masks, V]."""
        longest = max(len(question.ids) for question in questions)
        ids = np.full((len(questions), longest), self.pieces.special.pad, dtype=np.int64)
        real = np.arange(longest) < np.array([[len(question.ids)] for question in questions])
        for row, question in enumerate(questions):
            ids[row, : len(question.ids)] = question.ids
        masks = [
            row * longest + position - self.before
            for row, question in enumerate(questions)
            for position in question.masks
        ]
        batch = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(real),
            "token_type_ids": torch.zeros(ids.shape, dtype=torch.int64),
            "masked_positions": torch.tensor(masks),
        }
        if self.permuted:  # no mask sees another
            batch["target_order"] = (batch["input_ids"] == self.pieces.special.mask).long()
        with torch.inference_mode(), autocast(self._precision, self._device.type):
            logits: torch.Tensor = self.model(move(batch, self._device))["mlm_logits"]
        return logits.float()

    def candidates(
        self, questions: Sequence[Question], logits: torch.Tensor, top_k: int
    ) -> list[list[Candidate]]:
        """Return the candidates of all masks of the questions, in order, from their logits."""
        best = logits.softmax(dim=-1).topk(min(top_k, logits.shape[-1]), dim=-1)
        top_tokens = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        origins = (
            (question.text, number)
            for question in questions
            for number in range(len(question.masks))
        )
        return [
            [
                self._candidate(text, number, token, score)
                for token, score in zip(tokens, scores, strict=True)
            ]
            for (text, number), (scores, tokens) in zip(origins, top_tokens, strict=True)
        ]

    def _candidate(self, text: str, number: int, token: int, score: float) -> Candidate:
        """Return token `token` as a candidate for mask `number` of the text."""
        if token in self.pieces.special.ids:
            word = str(self.pieces.backend.id_to_token(token))
        else:
            word = str(self.pieces.backend.decode([token], skip_special_tokens=False)).strip()
        sequence = fill_in(text, self.mask_token, number, word)
        return {"token": word, "score": score, "sequence": sequence}


class FillMask(Verb[Question]):
    """Predictor of fill-mask: `predictions` of each text, see `FillMaskPipeline.fill`."""

    def __init__(self, checkpoint: str, config: FillMaskConfig) -> None:
        where = placement(config.device, config.precision)
        self.filler, self._top_k = FillMaskPipeline(checkpoint, **where), config.top_k
        self._ranks: dict[str, list[int]] = {}  # of probes, by relation
        self._dropped = 0

    def read(self, request: Request) -> Question:
        text, word = probe_text(request), request.optional("obj_label")
        with request.blamed():
            if word is None:
                return self.filler.question(text)
            relation = next(filter(None, map(request.optional, RELATIONS)), "")
            return self.filler.probe(text, word, relation)

    def answer(self, encoded: Sequence[Question]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        ranked = self.filler.ranked(encoded, self._top_k)
        for question, (predictions, rank) in zip(encoded, ranked, strict=True):
            found.append({"predictions": predictions})
            if question.label is not None:
                found[-1]["rank"] = rank
                self._dropped += rank is None
            if rank is not None:
                self._ranks.setdefault(question.relation or "", []).append(rank)
        return found

    def finish(self) -> dict[str, Any]:
        """Return the metrics of the probes: means over probes, and precision by relation."""
        if not self._ranks:
            return {"dropped": self._dropped} if self._dropped else {}
        ranks = np.concatenate([*map(np.array, self._ranks.values())])
        by_relation = {name: np.mean(np.array(own) == 1) for name, own in self._ranks.items()}
        metrics = {
            "precision_at_1": (ranks == 1).mean(),
            "precision_at_10": (ranks <= 10).mean(),
            "mrr": (1 / ranks).mean(),
            "macro_precision_at_1": np.mean([*by_relation.values()]),
        }
        return {
            "metrics": {name: float(value) for name, value in metrics.items()},
            "by_relation": {name: float(value) for name, value in sorted(by_relation.items())},
            "probes": len(ranks),
            "dropped": self._dropped,
        }


RELATIONS = ("predicate_id", "pred", "relation")  # names in LAMA's files


def probe_text(request: Request) -> str:
    """Return the text of a request: `text`, LAMA's `template`, or its `masked_sentences`."""
    sentences = request.fields.get("masked_sentences")
    if request.fields.get("text") is None and request.fields.get("template") is not None:
        subject = request.text("sub_label")
        return request.text("template").replace("[X]", subject).replace("[Y]", MASK)
    if request.fields.get("text") is not None or sentences is None:
        return request.text("text")
    if not isinstance(sentences, list) or not all(isinstance(own, str) for own in sentences):
        raise request.error("has masked_sentences that are no list of texts; write them as one")
    return " ".join(sentences)


def fill_in(text: str, mask_token: str, number: int, word: str) -> str:
    """Replace mask `number` of the text; a continuation token (`##ing`) joins its word."""
    pieces = text.split(mask_token)
    before, after = mask_token.join(pieces[: number + 1]), mask_token.join(pieces[number + 1 :])
    if word.startswith("##") and len(word) > 2:
        before, word = before.rstrip(), word[2:]
    return before + word + after
