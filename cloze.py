"""Cloze in Python: a checkpoint in memory, with the verbs of the command line.

    import cloze

    model = cloze.load("W/pretrain")
    model.fill_mask("The capital of France is [MASK].")

`load` takes what `cloze pretrain`, `cloze finetune` and `cloze import` make. What a checkpoint can do depends on what it was trained for;
a verb that it cannot do raises a `UsageError` that says so. Models run on the CPU, in fp32; they are read when a verb first needs them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.core import storage
from pipeline.core.errors import ClozeError, DataError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from model.use.answer import Answerer
    from model.use.classify import Classifier
    from model.use.embed import Embedder
    from model.use.generate import Generator
    from model.use.masks import Filler
    from model.use.scorer import Scorer
    from model.use.tag import Tagger

__all__ = ["Checkpoint", "ClozeError", "DataError", "UsageError", "load"]


def load(path: str) -> Checkpoint:
    """The checkpoint at `path`: an artifact of pretrain, finetune or import, or a checkpoint directory in one.

    >>> load("W/pretrain")
    Checkpoint('W/pretrain')
    >>> load("W/nowhere")
    Traceback (most recent call last):
    pipeline.core.errors.DataError: W/nowhere does not exist; name a checkpoint, or an artifact of pretrain or finetune

    Raises:
        DataError: there is no checkpoint, or it is incomplete.
    """
    from model import checkpoint

    checkpoint.resolve(path)
    return Checkpoint(path)


class Checkpoint:
    """A checkpoint and its verbs; `load` makes one."""

    def __init__(self, path: str) -> None:
        self._told = path
        self._path = storage.absolute(path)

    def __repr__(self) -> str:
        return f"Checkpoint({self._told!r})"

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[dict[str, Any]]]:
        """The likeliest pieces for each [MASK] of a text: a list a mask, best first, as `cloze fill-mask` gives them.

        >>> (mask,) = load("W/pretrain").fill_mask("the cat sat on the [MASK].", top_k=3)
        >>> [sorted(candidate) for candidate in mask]
        [['score', 'sequence', 'token'], ['score', 'sequence', 'token'], ['score', 'sequence', 'token']]
        >>> mask[0]["sequence"] == f"the cat sat on the {mask[0]['token']}."
        True

        Args:
            top_k: how many pieces a mask.

        Returns:
            Of each mask {"token": the piece as text, "score": its probability, "sequence": the text with it in place}.

        Raises:
            UsageError: the checkpoint cannot fill masks, or the text has none or is too long.
        """
        return self._filler.fill(text, top_k)

    def generate(
        self,
        text: str,
        tokens: int = 40,
        *,
        samples: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 1,
    ) -> list[dict[str, Any]]:
        """How a left-to-right model goes on with a text, as `cloze generate` gives it.

        >>> (found,) = load("W/gpt2").generate("the cat", tokens=5)
        >>> found["text"] == "the cat" + found["continuation"]
        True
        >>> len(load("W/gpt2").generate("the cat", tokens=5, samples=3, top_p=0.9))
        3

        Args:
            tokens: the most to write; fewer where the text ends, or the model reads no more.
            samples: how many continuations; more than one are drawn by chance.
            temperature: logits are divided by it and drawn from; 0 takes the likeliest token. None: 0, or 1 where `samples`, `top_k`
                or `top_p` ask for chance.
            top_k: draw from so many of the likeliest tokens alone.
            top_p: draw from the fewest tokens that have this probability together.
            seed: of chance.

        Returns:
            Of each continuation {"text": with its beginning, "continuation": what was written, "tokens": how many, "stopped": "end" of
            the text, "tokens" or "model"}.

        Raises:
            UsageError: the checkpoint does not read from left to right, or the text is empty or too long.
        """
        from model.use.generate import settled, told
        from model.use.generate_stage import GenerateConfig
        from pipeline.core.config import parse_config

        asked = {"tokens": tokens, "samples": samples, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        config = parse_config(GenerateConfig, {**asked, "requests": [{"text": text}]}, "generate")
        (found,) = self._generator.generate([text], tokens=tokens, samples=samples, choice=settled(config))
        return [told(one) for one in found]

    def answer(self, question: str, passage: str, top_k: int = 5) -> list[dict[str, Any]]:
        """Answers to a question, parts of a passage of any length, best first.

        >>> best, *others = load("W/squad").answer("where is the cat?", "the cat sat on the mat in paris.")
        >>> sorted(best)
        ['answer', 'end', 'score', 'start']
        >>> best["score"] >= others[0]["score"]
        True

        Returns:
            {"answer": the text, "score": its probability among the answers, "start", "end": its characters in the passage}; "no answer"
            is an empty text with `start` and `end` None.

        Raises:
            UsageError: the checkpoint answers no questions, or the question is empty.
        """
        return self._answerer.answer(question, passage, top_k)

    def classify(self, text: str, pair: str | None = None, *, choices: Sequence[str] = ()) -> list[dict[str, Any]]:
        """The labels of a text, or of a pair of texts, best first.

        >>> found = load("W/sst2").classify("the dog ran in the park.")
        >>> sorted(label["label"] for label in found)
        ['negative', 'positive']
        >>> round(sum(label["score"] for label in found), 5)
        1.0

        Args:
            pair: the second text, for tasks on pairs.
            choices: of a task that chooses how the text goes on: two or more endings.

        Returns:
            Of each label {"label": …, "score": its probability}; of a task that gives numbers one {"score": the number}; of choices
            {"choice": its number, from 0, "text": …, "score": its probability}.

        Raises:
            UsageError: the checkpoint gives no labels to texts; or its task wants a pair and there is none, or the other way round.
        """
        pairs = None if pair is None else [pair]
        if choices or self._classifier.answers == "choices":
            return self._classifier.choose([text], [choices])[0]
        if self._classifier.answers == "scores":
            return [{"score": score} for score in self._classifier.score([text], pairs)]
        return self._classifier.classify([text], pairs)[0]

    def tag(self, text: str) -> list[dict[str, Any]]:
        """The entities in a text of any length, in the order of their places.

        >>> for entity in load("W/ner").tag("The cat sat in Paris."):
        ...     assert sorted(entity) == ["end", "score", "start", "text", "type"]
        ...     assert entity["text"] == "The cat sat in Paris."[entity["start"] : entity["end"]]

        Returns:
            {"text": as it stands there, "type": such as PER, "start", "end": its characters, "score": its words' mean probability}.

        Raises:
            UsageError: the checkpoint tags no words.
        """
        return self._tagger.tag(text)

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """A vector of each text, by a model that was tuned for retrieval as it was tuned, by any other one the mean of its states.

        >>> load("W/pretrain").embed(["the cat sat.", "a dog ran.", "paris."]).shape
        (3, 16)

        Returns:
            float32 [texts, width of the model].

        Raises:
            UsageError: `texts` is a text and not several.
            DataError: a text is empty.
        """
        if isinstance(texts, str):
            raise UsageError(f"texts ({texts[:60]!r}) is one text; give a list of texts")
        return self._embedder.embed(texts)

    def score(self, text: str) -> dict[str, Any]:
        """How likely a pretrained model finds a text, in nats; nearer to 0 is likelier.

        Each piece is masked in turn and the log-probabilities of what stands there are summed; a left-to-right model reads once.

        >>> found = load("W/pretrain").score("the cat sat on the mat.")
        >>> found["pieces"]
        ['the', 'cat', 'sat', 'on', 'the', 'mat', '.']
        >>> found["score"] < 0 and abs(found["score"] - sum(found["log_probabilities"])) < 1e-6
        True

        Returns:
            {"score": the sum, "pieces": …, "log_probabilities": of each piece}.

        Raises:
            UsageError: the checkpoint names no pieces.
            DataError: the text is empty, or longer than the model reads.
        """
        (found,) = self._scorer.scored([text])
        return {
            "score": found.score(),
            "pieces": list(found.pieces),
            "log_probabilities": found.log_probabilities.tolist(),
        }

    @functools.cached_property
    def _filler(self) -> Filler:
        from model.use.masks import Filler

        return Filler(self._path)

    @functools.cached_property
    def _generator(self) -> Generator:
        from model.use.generate import Generator

        return Generator(self._path)

    @functools.cached_property
    def _answerer(self) -> Answerer:
        from model.use.answer import Answerer

        return Answerer(self._path)

    @functools.cached_property
    def _classifier(self) -> Classifier:
        from model.use.classify import Classifier

        return Classifier(self._path)

    @functools.cached_property
    def _tagger(self) -> Tagger:
        from model.use.tag import Tagger

        return Tagger(self._path)

    @functools.cached_property
    def _embedder(self) -> Embedder:
        from model.use.embed import Embedder

        return Embedder(self._path)

    @functools.cached_property
    def _scorer(self) -> Scorer:
        from model.use.scorer import Scorer

        return Scorer(self._path)
