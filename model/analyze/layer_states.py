"""States of all layers of a frozen encoder: of tokens, and of words in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from cloze.model.data.batch import move
from cloze.model.families.pretraining import encode
from cloze.model.layers.encoder import layer_states
from cloze.model.tasks.encode import (
    CPU_POSITIONS,
    GPU_POSITIONS,
    TextSamples,
    WordSamples,
    evaluation_batches,
)
from cloze.model.tasks.task import Ints
from cloze.model.train.precision import Precision, autocast
from cloze.model.use.word_vectors import word_means

SENTENCES = 128  # sentences whose states are in memory at once


class FrozenLayers:
    """Encoder whose states of all layers are read, without gradients.

    Args:
        encoder: encoder of n layers on `device`.

    Attributes:
        count: n + 1, the embeddings included.
    """

    def __init__(self, encoder: nn.Module, device: torch.device, precision: Precision) -> None:
        self._encoder, self._device, self._precision = encoder.to(device).eval(), device, precision
        self.count = 1 + len(list(encoder.get_submodule("layers").children()))

    def batches(self, samples: TextSamples, numbers: Ints) -> Iterator[tuple[Ints, Tensor]]:
        """Yield the numbers of samples, and their states, fp32 [B, L, layers, D].

        Args:
            numbers: numbers of the samples to read, in any order.
        """
        positions = CPU_POSITIONS if self._device.type == "cpu" else GPU_POSITIONS
        for indices in evaluation_batches(samples.lengths[numbers], positions):
            batch = move(samples.batch(numbers[indices], "rows"), self._device)
            with torch.inference_mode(), autocast(self._precision, self._device.type):
                states = layer_states(
                    self._encoder,
                    range(self.count),
                    lambda batch=batch: encode(self._encoder, batch["input_ids"], batch),
                )
            yield numbers[indices], torch.stack([state.float() for state in states], dim=2)

    def words(self, samples: WordSamples, sentences: int) -> Iterator[tuple[int, Tensor]]:
        """Yield parts of the words' states in order: number of the first sentence, and states.

        A word's state is the mean of those of its tokens, as in `cloze embed --words`: whatever
        token of the word carries a property, the mean shows it, and layer 0 does not lose the rest
        of a rare word. States are fp32 [words, layers, D], on the CPU.
        """
        of_window = np.array([window.sentence for window in samples.windows])
        ends = np.zeros(sentences + 1, np.int64)  # words before each sentence
        for window in samples.windows:
            ends[window.sentence + 1] = max(ends[window.sentence + 1], window.own[1])
        ends = ends.cumsum()
        for begin in range(0, sentences, SENTENCES):
            end = min(begin + SENTENCES, sentences)
            states = torch.zeros(0)
            for numbers, found in self.batches(
                samples, np.flatnonzero((of_window >= begin) & (of_window < end))
            ):
                if not len(states):
                    states = found.new_zeros(int(ends[end] - ends[begin]), *found.shape[2:])
                for number, row in zip(numbers, found, strict=True):
                    first, sizes = samples.first[number], samples.sizes[number]
                    if len(sizes):
                        window = samples.windows[number]
                        at = int(ends[window.sentence] - ends[begin]) + window.own[0]
                        owners = np.repeat(np.arange(len(sizes)), sizes)
                        tokens = row[first[0] : first[0] + len(owners)].flatten(1)
                        means = word_means(
                            tokens, torch.from_numpy(owners).to(row.device), len(sizes)
                        )
                        states[at : at + len(sizes)] = means.view(len(sizes), *row.shape[1:])
            yield begin, states.cpu()
