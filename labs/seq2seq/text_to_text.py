"""Generation by an encoder-decoder: a text for a text, by beam search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from cloze.core.errors import UsageError
from cloze.labs.seq2seq.continuation import Continuation, SamplingParams, check_length
from cloze.labs.seq2seq.decoder import BeamSearch, EncoderDecoder, generate
from cloze.labs.seq2seq.encoder_decoder import EncoderDecoderConfig
from cloze.labs.seq2seq.noise import padded
from cloze.labs.seq2seq.rag import RETRIEVAL, RagNetwork, open_store
from cloze.model import checkpoint
from cloze.model.families.models import load_model
from cloze.model.tasks.heads import trained_network
from cloze.model.tasks.table import load_task, task_options
from cloze.model.train.precision import Precision, autocast, place

POSITIONS = 4096  # of a batch's sources, times beams; sources are sorted by length


class TextToTextPipeline:
    """Encoder-decoder in memory, pretrained or fine-tuned on a text-to-text task.

    Texts get the prefix of the task, and its beams and length penalty unless others are given. A
    checkpoint that was fine-tuned with retrieval reads passages.

    Args:
        path: checkpoint, or an artifact that contains one.
        corpus: vectors of passages to read instead of those of the fine-tuning.
        device, precision: of the computation. Default: the CPU, fp32.

    Raises:
        UsageError: the checkpoint writes no texts.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(
        self,
        path: str,
        *,
        corpus: str | None = None,
        device: torch.device | None = None,
        precision: Precision = "fp32",
    ) -> None:
        loaded, self.pieces = checkpoint.load_with_tokenizer(path)
        if "seq2seq" not in loaded.heads:
            raise UsageError(
                f"{path} was fine-tuned for {', '.join(loaded.heads)} and writes no texts; name a "
                f"pretrained encoder-decoder, or one that was fine-tuned on text-to-text"
            )
        loaded.require_trained("seq2seq")
        metadata = loaded.task or {}
        options = dict(metadata.get("options") or {})
        if metadata:
            options = task_options(str(metadata["name"]), options).model_dump()
        # Ids behind the vocabulary; T5's names for them can then be read and written.
        sentinels = range(loaded.model.vocab_size - self.pieces.vocab_size)
        self.pieces.backend.add_tokens([f"<extra_id_{number}>" for number in sentinels])
        # A pretrained model fills spans in, so its texts name them; a task's texts name nothing.
        vocabulary = self.pieces.backend.get_vocab(with_added_tokens=True)
        spans = [] if metadata else [name for name in vocabulary if name.startswith("<extra_id_")]
        self._reader = self.pieces.backend_naming(spans)
        self._prefix = str(options.get("prefix", ""))
        self._beams = int(options.get("beams", 1))
        self._length_penalty = float(options.get("length_penalty", 1.0))
        self._config = cast(EncoderDecoderConfig, loaded.model)
        self._device, self._precision = device or torch.device("cpu"), precision
        self._rag: RagNetwork | None = None
        if RETRIEVAL in metadata:
            task = load_task(str(metadata["name"]), metadata.get("options"))
            rag = trained_network(task, loaded.model, loaded.state, metadata, loaded.path)
            self._rag = cast(RagNetwork, place(rag, self._device, precision))
            self._rag.store = open_store(metadata, loaded.path, self.pieces, corpus)
            self._network = self._rag.encoder
            return
        network = place(load_model(loaded.model, loaded.state), self._device, precision)
        self._network = cast(EncoderDecoder, network.encoder)

    def question(self, text: str) -> list[int]:
        """Tokenize a text with the task's prefix, [CLS] and [SEP].

        Raises:
            UsageError: the text is empty, or too long.
        """
        ids = self._reader.encode(self._prefix + text, add_special_tokens=False).ids
        count = len(ids) if text.strip() else 0  # a prefix alone is no text
        check_length(text, count, self._config.max_position_embeddings, "[CLS] and [SEP]")
        return [*self.pieces.special.begins, *map(int, ids), self.pieces.special.sep]

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
        """Return the best output for each text, in a list of its own.

        Args:
            tokens: maximum number of tokens.
            samples, choice: not supported: outputs are searched for, not sampled.
            beams, length_penalty: of the search. Default: the task's, else 1 and 1.0.

        Raises:
            UsageError: a text is empty or too long, or outputs would be sampled.
        """
        if samples > 1 or (choice is not None and choice.temperature > 0.0):
            raise UsageError(
                "sampling options are for models that read from left to right, and this "
                "encoder-decoder searches for its best output; use beams instead"
            )
        sources = [np.array(self.question(text)) for text in texts]
        search = BeamSearch(
            beams=beams or self._beams,
            length_penalty=self._length_penalty if length_penalty is None else length_penalty,
            tokens=min(tokens, self._config.max_position_embeddings - 1),
        )
        results: dict[int, Continuation] = {}
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        while order:
            width = len(sources[order[0]]) + (self._rag.store.longest if self._rag else 0)
            copies = self._rag.passages if self._rag else 1
            size = max(1, POSITIONS // (width * search.beams * copies))
            batch, order = order[:size], order[size:]
            ids = padded([sources[number] for number in batch], self._network.ids.pad).to(
                self._device
            )
            lengths = torch.tensor([len(sources[number]) for number in batch], device=self._device)
            real = torch.arange(ids.shape[1], device=self._device) < lengths[:, None]
            with torch.inference_mode(), autocast(self._precision, self._device.type):
                written, passages = self._written(ids, real, search)
            for number, output, own in zip(batch, written.tolist(), passages, strict=True):
                results[number] = self._continuation(output, self._network.ids.end, own)
        return [[results[number]] for number in range(len(texts))]

    def _written(
        self, ids: Tensor, real: Tensor, search: BeamSearch
    ) -> tuple[Tensor, list[tuple[dict[str, Any], ...]]]:
        """Return the outputs, int64 [B, T], and the passages that were read for each."""
        if self._rag is None:
            memory = self._network.memory_of(ids, real)
            return generate(self._network, memory, search), [()] * len(ids)
        memory, numbers, prior = self._rag.read({"input_ids": ids, "attention_mask": real})
        passage, rows = self._rag.store.index.passage, zip(numbers, prior.exp(), strict=True)
        return self._rag.write(memory, prior, search), [
            tuple(
                {"probability": probability, **asdict(passage(number))}
                for number, probability in zip(own.tolist(), shares.tolist(), strict=True)
            )
            for own, shares in rows
        ]

    def _continuation(
        self, output: list[int], end: int, passages: tuple[dict[str, Any], ...]
    ) -> Continuation:
        ended = end in output
        ids = output[: output.index(end)] if ended else output
        text = self.pieces.backend.decode(ids, skip_special_tokens=True)
        stopped: Literal["end", "tokens"] = "end" if ended else "tokens"
        return Continuation(
            text=text, continuation=text, ids=tuple(ids), stopped=stopped, passages=passages
        )
