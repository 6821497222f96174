"""`cloze.Checkpoint`: inference methods that take one text, or any iterable of texts."""

# A string is an iterable of strings, so the overloads overlap; the first one counts.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from cloze.core import storage
from cloze.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Pipeline = TypeVar("Pipeline")
Answers = list[dict[str, Any]]
Texts = Iterable[str]


class Checkpoint:
    """A checkpoint and its inference methods, returned by `load`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: Literal["auto", "cpu", "cuda"] = "cpu",
        precision: Literal["auto", "fp32", "bf16"] = "fp32",
    ) -> None:
        from cloze.model import checkpoint

        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise UsageError(f"path ({path!r}) is no path; give a string or a pathlib.Path")
        self._told = os.fspath(path)
        self._placement: dict[str, Any] = {"device": device, "precision": precision}
        self._options("embed")
        checkpoint.resolve(self._told)
        self._path = storage.absolute(self._told)
        self._pipelines: dict[Callable[..., Any], Any] = {}

    def __repr__(self) -> str:
        return f"Checkpoint({self._told!r})"

    @overload
    def fill_mask(self, text: str, top_k: int = 5) -> list[Answers]: ...
    @overload
    def fill_mask(self, text: Texts, top_k: int = 5) -> list[list[Answers]]: ...
    def fill_mask(self, text: str | Texts, top_k: int = 5) -> Any:
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
        from cloze.model.use.request import as_given, texts_of

        top_k = self._options("fill-mask", top_k=top_k).top_k
        texts, filler = texts_of(text, "text"), self._open(FillMaskPipeline)
        found = filler.answer([filler.question(own) for own in texts], top_k)
        return as_given(text, found)

    def generate(
        self,
        text: str | Texts,
        tokens: int = 40,
        *,
        samples: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 1,
    ) -> Any:
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
        from cloze.labs.seq2seq import generate
        from cloze.model.use.request import as_given, texts_of

        drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        config = self._options("generate", tokens=tokens, samples=samples, **drawn)
        pipeline, texts = self._open(generate.generation_pipeline), texts_of(text, "text")
        choice = generate.sampling_params(config)
        found = pipeline.generate(
            texts, tokens=config.tokens, samples=config.samples, choice=choice
        )
        return as_given(text, [[generate.continuation_json(own) for own in each] for each in found])

    @overload
    def answer(self, question: str, passage: str, top_k: int = 5) -> Answers: ...
    @overload
    def answer(self, question: Texts, passage: str | Texts, top_k: int = 5) -> list[Answers]: ...
    def answer(self, question: str | Texts, passage: str | Texts, top_k: int = 5) -> Any:
        """Return answers to a question, best first: spans of a passage of any length.

        Several questions have one passage, or one each.

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
        from cloze.labs.serving.predictors import QuestionAnsweringPipeline
        from cloze.model.use.request import as_given, matching_texts, texts_of

        top_k = self._options("answer", top_k=top_k).top_k
        questions = texts_of(question, "question")
        passages = matching_texts(passage, "passage", questions)
        pairs = list(zip(questions, passages, strict=True))
        answerer = self._open(QuestionAnsweringPipeline)
        return as_given(question, answerer.answer_batch(pairs, top_k))

    @overload
    def classify(
        self, text: str, pair: str | None = None, *, choices: Sequence[str] = ()
    ) -> Answers: ...
    @overload
    def classify(
        self, text: Texts, pair: Texts | None = None, *, choices: Sequence[Sequence[str]] = ()
    ) -> list[Answers]: ...
    def classify(
        self,
        text: str | Texts,
        pair: str | Texts | None = None,
        *,
        choices: Sequence[Any] = (),
    ) -> Any:
        """Return the labels of a text or of a pair of texts, best first.

        Several texts have a pair each, and a list of choices each.

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
            For classification {"label": name, "score": probability} per label; for regression one
            {"score": value}; for multiple choice {"choice": index from 0, "text": ending, "score":
            probability} per ending.

        Raises:
            UsageError: the checkpoint does not classify texts, or `pair` does not match the task.
        """
        from cloze.labs.serving.classify import TextClassificationPipeline
        from cloze.model.use.request import as_given, matching_texts, texts_of

        texts, classifier = texts_of(text, "text"), self._open(TextClassificationPipeline)
        pairs = None if pair is None else matching_texts(pair, "pair", texts)
        if choices or classifier.answers == "choices":
            endings = [choices] if isinstance(text, str) else choices
            found = classifier.choose(texts, [texts_of(own, "choices") for own in endings])
        elif classifier.answers == "scores":
            found = [[{"score": score}] for score in classifier.score(texts, pairs)]
        else:
            found = classifier.classify(texts, pairs)
        return as_given(text, found)

    @overload
    def tag(self, text: str) -> Answers: ...
    @overload
    def tag(self, text: Texts) -> list[Answers]: ...
    def tag(self, text: str | Texts) -> Any:
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
        from cloze.labs.serving.predictors import TokenClassificationPipeline
        from cloze.model.use.request import as_given, texts_of

        found = self._open(TokenClassificationPipeline).tag_batch(texts_of(text, "text"))
        return as_given(text, found)

    def embed(self, texts: str | Texts) -> npt.NDArray[np.float32]:
        """Return one vector per text.

        A model tuned for retrieval pools as in its training; any other model averages its hidden
        states.

        Examples:
            >>> load("W/pretrain").embed(["the cat sat.", "a dog ran.", "paris."]).shape
            (3, 16)

        Returns:
            float32 [texts, D]; [D] for one text that is not in a list.

        Raises:
            UsageError: a text is empty.
        """
        from cloze.labs.embed import EmbeddingPipeline
        from cloze.model.use.request import texts_of

        vectors = self._open(EmbeddingPipeline).embed(texts_of(texts, "texts"))
        return vectors[0] if isinstance(texts, str) else vectors

    @overload
    def score(self, text: str) -> dict[str, Any]: ...
    @overload
    def score(self, text: Texts) -> Answers: ...
    def score(self, text: str | Texts) -> Any:
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
            UsageError: the checkpoint does not predict tokens, or the text is empty.
            DataError: the text is longer than the model's context.
        """
        from cloze.model.use.request import as_given, texts_of
        from cloze.model.use.scorer import SentenceScorer

        found = [
            {
                "score": scored.score(),
                "pieces": list(scored.pieces),
                "log_probabilities": scored.log_probabilities.tolist(),
            }
            for scored in self._open(SentenceScorer).scored(texts_of(text, "text"))
        ]
        return as_given(text, found)

    @overload
    def attention(self, texts: str, pairs: str | None = None) -> dict[str, Any]: ...
    @overload
    def attention(self, texts: Texts, pairs: Texts | None = None) -> Answers: ...
    def attention(self, texts: str | Texts, pairs: str | Texts | None = None) -> Any:
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
            UsageError: a text is empty or too long, or `pairs` has another length.
        """
        from cloze.labs.inside.attention import AttentionPipeline
        from cloze.model.use.request import as_given, matching_texts, texts_of

        own = texts_of(texts, "texts")
        seconds = [None] * len(own) if pairs is None else matching_texts(pairs, "pairs", own)
        pipeline = self._open(AttentionPipeline)
        found = [pipeline.attend(pipeline.encode(*pair)) for pair in zip(own, seconds, strict=True)]
        return as_given(texts, found)

    def batch(
        self,
        verb: str,
        requests: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]],
        **options: Any,
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
        from cloze.model.use import verb as verbs
        from cloze.model.use.request import request_of

        config, first = self._options(verb, **options), verbs.PREDICTORS.find(verb).first
        if isinstance(requests, str | Mapping):
            requests = [requests]
        if not isinstance(requests, Iterable):
            raise UsageError(f"requests ({requests!r}) is no list of texts; give one")
        numbered = (
            request_of(fields if isinstance(fields, Mapping) else {first: fields}, number)
            for number, fields in enumerate(requests)
        )
        groups = verbs.answer_requests(verbs.open_verb(verb, self._path, config), numbered)
        return (answer for _, answers in groups for answer in answers)

    def _options(self, verb: str, **options: Any) -> Any:
        """Return the checked options of the command `verb`: its config."""
        from cloze.core.config import parse_config
        from cloze.model.use.verb import PREDICTORS

        paths = {
            key: os.fspath(own) for key, own in options.items() if isinstance(own, os.PathLike)
        }
        values = {**self._placement, **options, **paths, "file": "-"}
        return parse_config(PREDICTORS.find(verb).config, values, verb)

    def _open(self, pipeline: Callable[..., Pipeline]) -> Pipeline:
        """Return a pipeline for this checkpoint, the same one at every call."""
        from cloze.model.train.precision import placement

        if pipeline not in self._pipelines:
            where = placement(**self._placement)
            self._pipelines[pipeline] = pipeline(self._path, **where)
        opened: Pipeline = self._pipelines[pipeline]
        return opened
