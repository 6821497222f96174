"""The command generate: texts by a left-to-right checkpoint, or by an encoder-decoder.

The latter is in `cloze.labs.seq2seq.text_to_text`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.labs.seq2seq.continuation import Continuation, SamplingParams, check_length
from cloze.labs.seq2seq.kv_cache import KVCache
from cloze.labs.seq2seq.stages import GenerateConfig
from cloze.model import checkpoint
from cloze.model.families.config import prediction_objectives
from cloze.model.families.models import load_model
from cloze.model.pyfunc import Params, answer_table, column_texts, input_table
from cloze.model.train.precision import Precision, autocast, place, placement
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb

if TYPE_CHECKING:
    import pandas

    from cloze.labs.seq2seq.text_to_text import TextToTextPipeline

TOKENS = 8192  # tokens per batch, generated ones included; their keys and values are in memory
TABLE_TOKENS = 40  # new tokens of a text in MLflow, unless the parameter `tokens` says otherwise


@dataclass(slots=True, kw_only=True)
class _Row:
    """Row in generation: token ids, number of given tokens, and random key."""

    ids: list[int]
    given: int
    key: int
    stopped: Literal["end", "tokens", "model"] | None = None


class TextGenerationPipeline:
    """Text-generation checkpoint in memory.

    Args:
        path: checkpoint, or an artifact that contains one.
        device, precision: of the computation. Default: the CPU, fp32.

    Raises:
        UsageError: the checkpoint does not predict left to right.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(
        self, path: str, *, device: torch.device | None = None, precision: Precision = "fp32"
    ) -> None:
        loaded, self.pieces = checkpoint.load_with_tokenizer(path)
        names = prediction_objectives(loaded.heads)
        if not {"lm", "clm"} & set(names):
            raise UsageError(_refusal(path, loaded.heads))
        loaded.require_trained("masked_lm", "lm")
        self._device, self._precision = device or torch.device("cpu"), precision
        network: Any = place(load_model(loaded.model, loaded.state), self._device, precision)
        self.longest = loaded.model.max_position_embeddings
        self._encoder: nn.Module = network.encoder
        self._head: nn.Module = network.lm if "lm" in names else network.masked_lm

    def question(self, text: str) -> list[int]:
        """Tokenize the beginning of a text, with [CLS] if the vocabulary has one.

        Raises:
            UsageError: the text is empty, or leaves no position for a new token.
        """
        ids = self.pieces.encode_batch([text])[0]
        check_length(text, len(ids), self.longest, "those it writes and [CLS]")
        return [*self.pieces.special.begins, *map(int, ids)]

    def generate(
        self,
        texts: Sequence[str],
        *,
        tokens: int,
        samples: int = 1,
        choice: SamplingParams | None = None,
        beams: int | None = None,
        length_penalty: float | None = None,
    ) -> list[list[Continuation]]:
        """Return `samples` continuations of each text.

        Args:
            tokens: maximum number of new tokens.
            choice: sampling parameters. Default: the most likely token.
            beams, length_penalty: of encoder-decoders; refused.

        Raises:
            UsageError: a text is empty or too long (see `question`), or beams are asked for.
        """
        if beams is not None or length_penalty is not None:
            raise UsageError(
                "beams and length_penalty are for encoder-decoders, and this model reads from left "
                "to right; leave them out"
            )
        choice = choice or SamplingParams()
        prompts = [self.question(text) for text in texts]
        keys = [random_keys.document_key(text) for text in texts]
        rows = [
            _Row(ids=list(ids), given=len(ids), key=int(random_keys.fold_in(key, sample)))
            for ids, key in zip(prompts, keys, strict=True)
            for sample in range(samples)
        ]
        order = sorted(range(len(rows)), key=lambda number: -rows[number].given)
        while order:
            longest = min(self.longest, rows[order[0]].given + tokens)
            size = max(1, TOKENS // longest)
            self._write([rows[number] for number in order[:size]], tokens, choice)
            order = order[size:]
        continuations = iter([self._continuation(row) for row in rows])
        return [list(itertools.islice(continuations, samples)) for _ in texts]

    @torch.inference_mode()
    def _write(self, rows: Sequence[_Row], tokens: int, choice: SamplingParams) -> None:
        """Extend all rows, the longest first, until each has stopped."""
        prompt_lengths = torch.tensor([row.given for row in rows])
        longest_prompt = int(prompt_lengths.max())
        capacity = min(self.longest, longest_prompt + tokens)
        layout = KVCache(len(rows), capacity)
        ids = torch.full((len(rows), longest_prompt), self.pieces.special.pad)
        for number, row in enumerate(rows):
            ids[number, : row.given] = torch.tensor(row.ids)
        positions = torch.arange(longest_prompt).expand_as(ids)
        logits = self._logits(ids, layout.advance(positions, longest_prompt), prompt_lengths - 1)
        for written in range(1, tokens + 1):
            for row, scores in zip(rows, logits.double().numpy(), strict=True):
                if row.stopped is None:
                    token = choice.token(scores, random_keys.fold_in(row.key, written))
                    self._add(row, token, tokens)
            if all(row.stopped for row in rows):
                return
            # Stopped rows repeat their last token; the result is unused.
            last_tokens = torch.tensor([[row.ids[-1]] for row in rows])
            positions = (prompt_lengths + written - 1).clamp(max=capacity - 1)
            logits = self._logits(
                last_tokens,
                layout.advance(positions[:, None], min(capacity, longest_prompt + written)),
                torch.zeros_like(prompt_lengths),
            )

    def _add(self, row: _Row, token: int, tokens: int) -> None:
        if token == self.pieces.special.sep:
            row.stopped = "end"
            return
        row.ids.append(token)
        if len(row.ids) - row.given == tokens:
            row.stopped = "tokens"
        elif len(row.ids) == self.longest:
            row.stopped = "model"

    def _logits(self, ids: Tensor, layout: KVCache, last: Tensor) -> Tensor:
        """Return logits, float32 [B, V], after token `last`, int64 [B], of the new ids [B, l]."""
        indices = (torch.arange(len(ids)) * ids.shape[1] + last).to(self._device)
        ids = ids.to(self._device)
        layout.advance(layout.positions.to(self._device), layout.max_distance)
        with autocast(self._precision, self._device.type):
            states = self._encoder(ids, None, torch.zeros_like(ids), layout, indices)
            words = self._encoder.get_parameter("embeddings.word.weight")
            logits: Tensor = self._head(states, words)
        return logits.float().cpu()

    def _continuation(self, row: _Row) -> Continuation:
        def decode(ids: Sequence[int]) -> str:
            return str(self.pieces.backend.decode(list(ids), skip_special_tokens=True))

        new_ids = tuple(row.ids[row.given :])
        prompt, text = decode(row.ids[: row.given]), decode(row.ids)
        continuation = text[len(prompt) :] if text.startswith(prompt) else decode(new_ids)
        assert row.stopped is not None
        return Continuation(text=text, continuation=continuation, ids=new_ids, stopped=row.stopped)


def sampling_params(config: GenerateConfig) -> SamplingParams:
    """Return the sampling parameters for the options.

    Raises:
        UsageError: sampling options are combined with temperature 0.
    """
    samples = config.samples if config.samples > 1 else None
    options = {"samples": samples, "top_k": config.top_k, "top_p": config.top_p}
    requested = {name: value for name, value in options.items() if value is not None}
    if config.temperature == 0.0 and requested:
        name, value = next(iter(requested.items()))
        raise UsageError(
            f"{name} ({value}) draws by chance, temperature (0) takes the likeliest token each "
            f"time; leave one of them out"
        )
    temperature = config.temperature if config.temperature is not None else float(bool(requested))
    return SamplingParams(
        temperature=temperature, top_k=config.top_k, top_p=config.top_p, seed=config.seed
    )


def continuation_json(result: Continuation) -> dict[str, Any]:
    return {
        "text": result.text,
        "continuation": result.continuation,
        "tokens": len(result.ids),
        "stopped": result.stopped,
        **({"passages": result.passages} if result.passages else {}),
    }


class Generate(Verb[str]):
    """Predictor of generate: the `continuations` of each text, see `Continuation`."""

    def __init__(self, checkpoint: str, config: GenerateConfig) -> None:
        self._choice, self._config = sampling_params(config), config
        where = placement(config.device, config.precision)
        self._generator = generation_pipeline(checkpoint, config.corpus, **where)

    def read(self, request: Request) -> str:
        text = request.text("text")
        with request.blamed():
            self._generator.question(text)
        return text

    def answer(self, encoded: Sequence[str]) -> list[dict[str, Any]]:
        generated = self._generator.generate(
            encoded,
            tokens=self._config.tokens,
            samples=self._config.samples,
            choice=self._choice,
            beams=self._config.beams,
            length_penalty=self._config.length_penalty,
        )
        return [
            {"text": text, "continuations": [continuation_json(own) for own in continuations]}
            for text, continuations in zip(encoded, generated, strict=True)
        ]


def generation_pipeline(
    path: str, corpus: str | None = None, **where: Any
) -> TextGenerationPipeline | TextToTextPipeline:
    """Load a checkpoint that writes texts; arguments and errors are those of the two classes."""
    from cloze.labs.seq2seq.rag import RETRIEVAL
    from cloze.labs.seq2seq.text_to_text import TextToTextPipeline

    with checkpoint.resolve_pinned(path) as directory:
        loaded = checkpoint.load_metadata(directory)
    if corpus is not None and RETRIEVAL not in (loaded.task or {}):
        raise UsageError(
            f"corpus ({corpus}) is for checkpoints that were fine-tuned with --retrieve, and "
            f"{path} reads no passages; leave it out"
        )
    if loaded.model.is_encoder_decoder:
        return TextToTextPipeline(path, corpus=corpus, **where)
    return TextGenerationPipeline(path, **where)


def continue_texts(pipeline: Any, model_input: Any, params: Params) -> pandas.DataFrame:
    """Return the likeliest continuation of each text, as `continuation_json`.

    Args:
        pipeline: its `generate` maps texts to lists of `Continuation`.
        params: `tokens`, the maximum number of generated tokens.
    """
    texts, most = column_texts(input_table(model_input)), int(params.get("tokens", TABLE_TOKENS))
    rows = [continuation_json(own) for (own,) in pipeline.generate(texts, tokens=most)]
    return answer_table(rows, "text", "continuation", "tokens", "stopped")


def _refusal(path: str, heads: Any) -> str:
    if "masked_lm" in heads:
        return (
            f"{path} fills masks and does not read from left to right; use `cloze fill-mask`, or "
            f"name a checkpoint of gpt2, ltr or the objective clm"
        )
    return (
        f"{path} has no lm head (it has {', '.join(heads)}); name a pretrained gpt2 or ltr "
        f"checkpoint"
    )
