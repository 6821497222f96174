"""Fine-tuned checkpoints that tag words, and the command tag: named entities in plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.core.errors import UsageError
from cloze.labs.serving.verbs import TagConfig
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.kinds.tagging import Tagging
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.task import Split
from cloze.model.train.precision import Placement, placement
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb
from cloze.model.use.word_vectors import Span, between_spaces, words_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Entity = dict[str, Any]  # {"text", "type", "start", "end", "score"}


class EncodedTexts(NamedTuple):
    """Texts, the spans of their words, and the split of the texts with words, if there is one."""

    texts: Sequence[str]
    spans: Sequence[Sequence[Span]]
    split: Split | None


class TokenClassificationPipeline(FinetunedModel):
    """Checkpoint of a tagging task, in memory.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task is no tagging.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(self, path: str, **placement: Unpack[Placement]) -> None:
        super().__init__(path, **placement)
        if not isinstance(self.task, Tagging):
            raise UsageError(
                f"task {self.task.name} of {path} tags no words; name a checkpoint of conll2003, "
                f"wnut17 or tagging"
            )
        self._tagging = self.task

    def tag(self, text: str, *, words: bool = False) -> list[Entity]:
        """Return the entities of a text, see `tag_batch`."""
        return self.tag_batch([text], words=words)[0]

    def tag_batch(self, texts: Sequence[str], *, words: bool = False) -> list[list[Entity]]:
        """Return the entities of each text, by position; long texts have overlapping windows.

        Args:
            words: words and punctuation are already separated by spaces.

        Returns:
            For each text, dicts of "text"; "type", such as PER; "start" and "end", characters, end
            exclusive; "score", the mean probability of its words' tags. With plain labels every
            word is an entity, and its label the type; words of one label in a row are one entity
            if the model was imported.
        """
        return self.entities(self.encode_texts(texts, words=words))

    def encode_texts(self, texts: Sequence[str], *, words: bool = False) -> EncodedTexts:
        """Split texts into words and tokenize them, for `entities`."""
        spans = [(between_spaces if words else words_of)(text) for text in texts]
        sentences = [
            [text[start:end] for start, end in text_spans]
            for text, text_spans in zip(texts, spans, strict=True)
            if text_spans
        ]
        split = self.encode(TaggedWords(words=sentences, where="texts")) if sentences else None
        return EncodedTexts(texts, spans, split)

    def entities(self, encoded: EncodedTexts) -> list[list[Entity]]:
        """Return what `tag_batch` returns for the texts of `encode_texts`."""
        results: list[list[Entity]] = [[] for _ in encoded.texts]
        if encoded.split is not None:
            predictions = self.predict(encoded.split)
            filled = [number for number, spans in enumerate(encoded.spans) if spans]
            for row, number in enumerate(filled):
                found = self._tagging.entities(predictions.tags[row])
                text, spans = encoded.texts[number], encoded.spans[number]
                results[number] = _entities(text, spans, found, predictions.scores[row])
        return results


class Tag(Verb[str]):
    """Predictor of tag: the `entities` of each text."""

    def __init__(self, checkpoint: str, config: TagConfig) -> None:
        where = placement(config.device, config.precision)
        self._tagger = TokenClassificationPipeline(checkpoint, **where)
        self._words = config.words

    def read(self, request: Request) -> str:
        return request.text("text")

    def encode(self, group: Sequence[str]) -> EncodedTexts:
        return self._tagger.encode_texts(group, words=self._words)

    def answer(self, encoded: EncodedTexts) -> list[dict[str, Any]]:
        return [{"entities": entities} for entities in self._tagger.entities(encoded)]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._tagger.truncated}


def _entities(
    text: str,
    spans: Sequence[Span],
    found: Sequence[tuple[str, int, int]],
    scores: npt.NDArray[np.float32],
) -> list[Entity]:
    return [
        {
            "text": text[spans[first][0] : spans[last][1]],
            "type": kind,
            "start": spans[first][0],
            "end": spans[last][1],
            "score": float(scores[first : last + 1].mean()),
        }
        for kind, first, last in found
    ]
