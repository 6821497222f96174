"""Cloze in Python: load a checkpoint and use it like the commands of `cloze`.

    import cloze

    model = cloze.load("W/pretrain")
    model.fill_mask("The capital of France is [MASK].")

`load` reads the artifacts of `cloze pretrain`, `cloze finetune` and `cloze import`. The methods
that a checkpoint supports depend on its training; the others raise a `UsageError`. The weights are
loaded at the first use.

    model = cloze.load("W/sst2", device="auto", precision="auto")
    for answer in model.batch("classify", open("reviews.txt")):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cloze.core import storage
from cloze.core.errors import ClozeError, DataError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


Pipeline = TypeVar("Pipeline")

__all__ = ["Checkpoint", "ClozeError", "DataError", "UsageError", "load"]


def load(
    path: str,
    *,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    precision: Literal["auto", "fp32", "bf16"] = "fp32",
) -> Checkpoint:
    """Return the checkpoint at `path`.

    Examples:
        >>> load("W/pretrain")
        Checkpoint('W/pretrain')
        >>> load("W/nowhere")
        Traceback (most recent call last):
            ...
        cloze.core.errors.DataError: W/nowhere does not exist; name a checkpoint, or an artifact ...

    Args:
        path: an artifact of pretrain, finetune or import, or a checkpoint directory in an artifact.
        device: device to compute on; auto: a GPU if there is one.
        precision: precision of matrix products; auto: bf16 if the hardware has it.

    Raises:
        DataError: no checkpoint exists at `path`, or the checkpoint is incomplete.
    """
    from cloze.model import checkpoint

    checkpoint.resolve(path)
    return Checkpoint(path, device, precision)


class Checkpoint:
    """A checkpoint and its inference methods, returned by `load`."""

    def __init__(
        self,
        path: str,
        device: Literal["auto", "cpu", "cuda"] = "cpu",
        precision: Literal["auto", "fp32", "bf16"] = "fp32",
    ) -> None:
        self._told = path
        self._path = storage.absolute(path)
        self._device: Literal["auto", "cpu", "cuda"] = device
        self._precision: Literal["auto", "fp32", "bf16"] = precision
        self._pipelines: dict[Callable[..., Any], Any] = {}

    def __repr__(self) -> str:
        return f"Checkpoint({self._told!r})"

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[dict[str, Any]]]:
        """Return the most probable tokens for each [MASK] of a text, as `cloze fill-mask` does.

        Examples:
            >>> (mask,) = load("W/pretrain").fill_mask("the cat sat on the [MASK].", top_k=3)
            >>> [sorted(candidate) for candidate in mask] == 3 * [["score", "sequence", "token"]]
            True
            >>> mask[0]["sequence"] == f"the cat sat on the {mask[0]['token']}."
            True

        Args:
            top_k: number of tokens per mask.

        Returns:
            One list per mask, best first, of {"token": text of the token, "score": its probability,
            "sequence": the text with the token filled in}.

        Raises:
            UsageError: the checkpoint cannot fill masks, or the text has no mask or is too long.
        """
        from cloze.model.use.fill_mask import FillMaskPipeline

        return self._open(FillMaskPipeline).fill(text, top_k)

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
        """Return continuations of a text by a left-to-right model, as `cloze generate` does.

        Examples:
            >>> (result,) = load("W/gpt2").generate("the cat", tokens=5)
            >>> result["text"] == "the cat" + result["continuation"]
            True
            >>> len(load("W/gpt2").generate("the cat", tokens=5, samples=3, top_p=0.9))
            3

        Args:
            tokens: maximum number of new tokens; fewer at the end of the text or of the model's
                context.
            samples: number of continuations; more than one are sampled.
            temperature: divisor of the logits before sampling; 0: take the most probable token.
                Default: 0, or 1 with `samples`, `top_k` or `top_p`.
            top_k: number of most probable tokens to sample from.
            top_p: probability mass to sample from: the fewest tokens that reach it together.
            seed: seed of the random numbers.

        Returns:
            Continuations {"text": prompt and continuation, "continuation": new text, "tokens":
            number of new tokens, "stopped": "end" (of the text), "tokens" or "model"}.

        Raises:
            UsageError: the model does not read left to right, or the text is empty or too long.
        """
        from cloze.core.config import parse_config
        from cloze.model.use.configs import GenerateConfig
        from cloze.model.use.generate import (
            continuation_json,
            generation_pipeline,
            sampling_params,
        )

        options = {
            "tokens": tokens,
            "samples": samples,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
        }
        config = parse_config(GenerateConfig, {**options, "requests": [{"text": text}]}, "generate")
        (continuations,) = self._open(generation_pipeline).generate(
            [text], tokens=tokens, samples=samples, choice=sampling_params(config)
        )
        return [continuation_json(continuation) for continuation in continuations]

    def answer(self, question: str, passage: str, top_k: int = 5) -> list[dict[str, Any]]:
        """Return answers to a question, best first: spans of a passage of any length.

        Examples:
            >>> model = load("W/squad")
            >>> passage = "the cat sat on the mat in paris."
            >>> best, *others = model.answer("where is the cat?", passage)
            >>> sorted(best)
            ['answer', 'end', 'score', 'start']
            >>> best["score"] >= others[0]["score"]
            True

        Returns:
            {"answer": text, "score": probability among the answers, "start", "end": character
            offsets in the passage}. "No answer" is an empty text with `start` and `end` None.

        Raises:
            UsageError: the checkpoint does not answer questions, or the question is empty.
        """
        from cloze.model.use.answer import QuestionAnsweringPipeline

        return self._open(QuestionAnsweringPipeline).answer(question, passage, top_k)

    def classify(
        self, text: str, pair: str | None = None, *, choices: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the labels of a text or of a pair of texts, best first.

        Examples:
            >>> labels = load("W/sst2").classify("the dog ran in the park.")
            >>> sorted(label["label"] for label in labels)
            ['negative', 'positive']
            >>> round(sum(label["score"] for label in labels), 5)
            1.0

        Args:
            pair: second text, for tasks on pairs.
            choices: two or more endings, for multiple-choice tasks.

        Returns:
            Classification: {"label": name, "score": probability} per label. Regression: one
                {"score": value}. Multiple choice: {"choice": index from 0, "text": ending, "score":
                probability} per ending.

        Raises:
            UsageError: the checkpoint does not classify texts, or `pair` does not match the task.
        """
        from cloze.model.use.classify import TextClassificationPipeline

        pairs, classifier = None if pair is None else [pair], self._open(TextClassificationPipeline)
        if choices or classifier.answers == "choices":
            return classifier.choose([text], [choices])[0]
        if classifier.answers == "scores":
            return [{"score": score} for score in classifier.score([text], pairs)]
        return classifier.classify([text], pairs)[0]

    def tag(self, text: str) -> list[dict[str, Any]]:
        """Return the entities in a text of any length, in text order.

        Examples:
            >>> text = "The cat sat in Paris."
            >>> for entity in load("W/ner").tag(text):
            ...     assert sorted(entity) == ["end", "score", "start", "text", "type"]
            ...     assert entity["text"] == text[entity["start"] : entity["end"]]

        Returns:
            {"text": the entity's text, "type": such as PER, "start", "end": character offsets,
            "score": mean probability of the entity's words}.

        Raises:
            UsageError: the checkpoint does not tag words.
        """
        from cloze.model.use.tag import TokenClassificationPipeline

        return self._open(TokenClassificationPipeline).tag(text)

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return one vector per text.

        A model tuned for retrieval pools as in its training; any other model averages its hidden
        states.

        Examples:
            >>> load("W/pretrain").embed(["the cat sat.", "a dog ran.", "paris."]).shape
            (3, 16)

        Returns:
            float32 [texts, D].

        Raises:
            UsageError: `texts` is a string instead of a list.
            DataError: a text is empty.
        """
        from cloze.model.use.embed import EmbeddingPipeline

        if isinstance(texts, str):
            raise UsageError(f"texts ({texts[:60]!r}) is one text; give a list of texts")
        return self._open(EmbeddingPipeline).embed(texts)

    def score(self, text: str) -> dict[str, Any]:
        """Return the log-probability of a text in nats; closer to 0 is likelier.

        A masked model masks each token in turn and sums the log-probabilities of the masked tokens.
        A left-to-right model reads the text once.

        Examples:
            >>> result = load("W/pretrain").score("the cat sat on the mat.")
            >>> result["pieces"]
            ['the', 'cat', 'sat', 'on', 'the', 'mat', '.']
            >>> difference = result["score"] - sum(result["log_probabilities"])
            >>> result["score"] < 0 and abs(difference) < 1e-6
            True

        Returns:
            {"score": sum, "pieces": tokens, "log_probabilities": one per token}.

        Raises:
            UsageError: the checkpoint does not predict tokens.
            DataError: the text is empty, or longer than the model's context.
        """
        from cloze.model.use.scorer import SentenceScorer

        (scored,) = self._open(SentenceScorer).scored([text])
        return {
            "score": scored.score(),
            "pieces": list(scored.pieces),
            "log_probabilities": scored.log_probabilities.tolist(),
        }

    def attention(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return the attention maps of each text, or of each pair of texts.

        Examples:
            >>> (result,) = load("W/pretrain").attention(["the cat sat."])
            >>> result["tokens"]
            ['[CLS]', 'the', 'cat', 'sat', '.', '[SEP]']
            >>> [layer.shape for layer in result["maps"]]
            [(4, 6, 6), (4, 6, 6)]

        Args:
            pairs: second texts, one for each text.

        Returns:
            {"tokens": L tokens as the model reads them, "second": position of the second text's
            first token, L without one, "maps": float32 [heads, L, L] of each layer, probabilities
            by attending and by attended token}.

        Raises:
            UsageError: `texts` is a string instead of a list, a text is empty or too long, or
                `pairs` has another length.
        """
        from cloze.model.analyze.attention import AttentionPipeline

        if isinstance(texts, str):
            raise UsageError(f"texts ({texts[:60]!r}) is one text; give a list of texts")
        if pairs is not None and len(pairs) != len(texts):
            raise UsageError(f"pairs ({len(pairs)}) must have one text for each of {len(texts)}")
        results, pipeline = [], self._open(AttentionPipeline)
        seconds: Sequence[str | None] = [None] * len(texts) if pairs is None else pairs
        for text, pair in zip(texts, seconds, strict=True):
            found = pipeline.attend(pipeline.encode(text, pair))
            maps = list(found.maps)
            results.append({"tokens": list(found.tokens), "second": found.second, "maps": maps})
        return results

    def batch(
        self, verb: str, requests: Iterable[str | Mapping[str, Any]], **options: Any
    ) -> Iterator[dict[str, Any]]:
        """Answer any number of requests like the command `verb`, in their order.

        Requests are read ahead, tokenized in a thread, sorted by length and computed in batches;
        memory does not grow with their number.

        Examples:
            >>> answers = load("W/sst2").batch("classify", ["the cat sat.", "a dog ran."], top_k=1)
            >>> [answer["label"] in ("negative", "positive") for answer in answers]
            [True, True]

        Args:
            verb: answer, classify, embed, fill-mask, generate, score or tag.
            requests: texts, or the fields of a request by name, such as `text` and `pair`.
            options: options of the command, in Python's spelling.

        Returns:
            The objects that the command prints with `--json`, without `index`.

        Raises:
            UsageError: the checkpoint does not support the verb, or cannot answer a request.
            DataError: the text is empty or too long.
        """
        from cloze.core.config import parse_config
        from cloze.model.use import verb as verbs
        from cloze.model.use.request import request_of

        config, _, first = verbs.find_verb(verb)
        values = {"device": self._device, "precision": self._precision, **options, "file": "-"}
        predictor = verbs.open_verb(verb, self._path, parse_config(config, values, verb))
        numbered = (
            request_of(fields if isinstance(fields, Mapping) else {first: fields}, number)
            for number, fields in enumerate(requests)
        )
        for _, answers in verbs.answer_requests(predictor, numbered):
            yield from answers

    def _open(self, pipeline: Callable[..., Pipeline]) -> Pipeline:
        """Return a pipeline for this checkpoint, the same one at every call."""
        from cloze.model.train.precision import placement

        if pipeline not in self._pipelines:
            where = placement(self._device, self._precision)
            self._pipelines[pipeline] = pipeline(self._path, **where)
        opened: Pipeline = self._pipelines[pipeline]
        return opened
