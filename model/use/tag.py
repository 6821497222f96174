"""What the verb tag does, once torch is there: texts in; the entities in them out, with their places in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model.tasks.formats.columns import TaggedWords
from model.tasks.formats.schemes import entities
from model.tasks.kinds.tagging import Tagging, Tags
from model.use.requests import Request
from model.use.serve import Verb
from model.use.tag_stage import TagConfig
from model.use.tuned import Tuned
from model.use.words import Span, between_spaces, words_of
from pipeline.core.errors import UsageError

Found = dict[str, Any]  # {"text", "type", "start", "end", "score"}


class Tagger:
    """A checkpoint of a task of tagging, in memory.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task is another kind's.
        DataError: there is no checkpoint at that path, or it is damaged.
    """

    def __init__(self, path: str) -> None:
        self._tuned = Tuned(path)
        if not isinstance(self._tuned.task, Tagging):
            raise UsageError(
                f"task {self._tuned.task.name} of {path} tags no words; name a checkpoint of conll2003, wnut17 or tagging"
            )

    @property
    def truncated(self) -> int:
        """How many texts had a word so long that pieces of it were left out, since it was loaded."""
        return self._tuned.truncated

    def tag(self, text: str, *, words: bool = False) -> list[Found]:
        """The entities of a text, see `tag_batch`."""
        return self.tag_batch([text], words=words)[0]

    def tag_batch(self, texts: Sequence[str], *, words: bool = False) -> list[list[Found]]:
        """The entities of each text, in the order of their places.

        A text longer than the model reads is read in windows that overlap.

        Args:
            words: its words are set off by spaces already, punctuation included; else they are found, see `model.use.words`.

        Returns:
            A list a text of {"text": as it stands there, "type": such as PER, "start", "end": its characters, the end not included,
            "score": the mean probability of its words' tags}.
        """
        spans = [(between_spaces if words else words_of)(text) for text in texts]
        filled = [number for number, own in enumerate(spans) if own]
        found: list[list[Found]] = [[] for _ in texts]
        if filled:
            sentences = [[texts[number][start:end] for start, end in spans[number]] for number in filled]
            predictions = self._tuned.predictions(TaggedWords(words=sentences, where="texts"))
            for row, number in enumerate(filled):
                found[number] = _entities(texts[number], spans[number], predictions, row)
        return found


class Tag(Verb[str]):
    """The verb: `entities` of each text."""

    def __init__(self, checkpoint: str, config: TagConfig) -> None:
        self._tagger, self._words = Tagger(checkpoint), config.words

    def read(self, request: Request) -> str:
        return request.text("text")

    def answer(self, group: Sequence[str]) -> list[dict[str, Any]]:
        return [{"entities": found} for found in self._tagger.tag_batch(group, words=self._words)]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._tagger.truncated}


def _entities(text: str, spans: Sequence[Span], predictions: Tags, row: int) -> list[Found]:
    scores = predictions.scores[row]
    found = []
    for kind, first, last in entities(predictions.tags[row]):
        start, end = spans[first][0], spans[last][1]
        score = float(scores[first : last + 1].mean())
        found.append({"text": text[start:end], "type": kind, "start": start, "end": end, "score": score})
    return found
