"""ELMo's bidirectional language model: words from characters, LSTM layers, softmax, objective.

Peters et al., "Deep contextualized word representations", 2018, sections 3.1, 3.2 and 3.4; sizes
and details from allenai/bilm-tf, bilm/training.py. Each direction has half of the width: the first
half of a state has read the words before, the second half those after.

Shapes: B batch, L length, D model, P = D / 2 one direction, V vocabulary, C characters of a word.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from cloze.model.families.pretraining import encode
from cloze.model.layers.attention import gather_positions
from cloze.model.layers.batch import IGNORE_INDEX, Batch, unmask
from cloze.model.layers.cpu import Dropout, Linear
from cloze.model.layers.cross_entropy import VocabularyHead, flat, summed_cross_entropy
from cloze.model.layers.embeddings import Embeddings
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.layout import BatchLayout
from cloze.model.objectives import Objective, Outputs
from cloze.model.objectives.losses import next_tokens
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

# torch's own loop runs these LSTMs on a CPU, at a similar speed
warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")

CHARACTERS = 50  # C, in bytes of UTF-8, with the two marks of begin and end
BEGIN, END = 254, 255  # bytes that UTF-8 does not have; 0 is filler
ALPHABET = 256


def spellings(words: Sequence[str]) -> Tensor:
    """Return the characters of each word, uint8 [V, C]; longer words are cut."""
    room = CHARACTERS - 2
    letters = np.array([word.encode()[:room] for word in words], dtype=f"S{room}")
    table = np.zeros((len(words), CHARACTERS), np.uint8)
    table[:, 0] = BEGIN
    table[:, 1:-1] = letters.view(np.uint8).reshape(len(words), room)
    table[np.arange(len(words)), np.char.str_len(letters) + 1] = END
    return torch.from_numpy(table)


class Highway(nn.Module):
    """Highway layer (Srivastava et al., 2015): y = g x + (1 - g) relu(W x), g open at first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = Linear(size, size)
        self.gate = Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map float [..., size] to the same shape."""
        gate = torch.sigmoid(self.gate(hidden) + 1.0)
        return gate * hidden + (1.0 - gate) * torch.relu(self.transform(hidden))


class CharacterEmbeddings(nn.Module):
    """Context-free vectors of words from their characters: convolutions, maxima, highway layers.

    The words' characters are a buffer, so that token ids suffice; `attach` sets them from a
    tokenizer. Without it, a word is spelled as the digits of its id.

    Args:
        filters: (width, number) of the convolutions.
        character_size: width of the characters' vectors.
        size: P.
    """

    per_piece: tuple[str, ...] = ("spelling",)
    spelling: Tensor

    def __init__(
        self,
        vocab_size: int,
        *,
        filters: Sequence[tuple[int, int]],
        character_size: int,
        highway_layers: int,
        size: int,
        dropout: float,
    ) -> None:
        super().__init__()
        total = sum(number for _, number in filters)
        self.widest = max(width for width, _ in filters)
        self.character = nn.Embedding(ALPHABET, character_size)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(character_size, number, width) for width, number in filters
        )
        self.highway = nn.Sequential(*(Highway(total) for _ in range(highway_layers)))
        self.projection = Linear(total, size)
        self.dropout = Dropout(dropout)
        self.register_buffer("spelling", torch.empty(vocab_size, CHARACTERS, dtype=torch.uint8))
        if not self.spelling.is_meta:
            self.spell([str(number) for number in range(vocab_size)])

    def initialize_own(self) -> None:
        """Initialize the weights as bilm-tf: characters in -1 to 1, outputs as large as inputs.

        With BERT's small numbers all words begin equal, and training leaves them one direction.
        """
        nn.init.uniform_(self.character.weight, -1.0, 1.0)
        for part in self.modules():
            if isinstance(part, nn.Conv1d | nn.Linear):
                nn.init.normal_(part.weight, std=part.weight[0].numel() ** -0.5)

    @torch.no_grad()
    def spell(self, words: Sequence[str]) -> None:
        """Set the characters of the words with ids 0 to len(words) - 1."""
        self.spelling[: len(words)] = spellings(words).to(self.spelling.device)

    def attach(self, pieces: Tokenizer, path: str, metadata: Mapping[str, Any]) -> None:
        """Spell the words of a tokenizer."""
        del path, metadata
        vocab = pieces.backend.get_vocab(with_added_tokens=True)
        words = [""] * (max(vocab.values()) + 1)
        for word, number in vocab.items():
            words[number] = word
        self.spell(words)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Return the vectors twice, once per direction: float [..., D] for ids, int64 [...]."""
        del token_type_ids, positions
        if input_ids.device.type != "cpu":  # another device would have to wait for the number
            words = self.words(self.spelling[input_ids.flatten()]).view(*input_ids.shape, -1)
        else:  # most words of a batch occur several times, and are short
            distinct, index = torch.unique(input_ids, return_inverse=True)
            characters = self.spelling[distinct]
            used = int(characters.any(dim=0).sum()) + self.widest  # behind is filler alone
            words = self.words(characters[:, :used])[index]
        words = self.dropout(words)
        return torch.cat([words, words], dim=-1)

    def words(self, characters: Tensor) -> Tensor:
        """Return the vectors of words, float [n, P], from their characters, uint8 [n, C]."""
        letters = self.character(characters.long()).transpose(1, 2)
        maxima = [convolution(letters).amax(dim=-1) for convolution in self.convolutions]
        projected: Tensor = self.projection(self.highway(torch.relu(torch.cat(maxima, dim=-1))))
        return projected


class BiLmLayer(nn.Module):
    """Two LSTMs with projections, one per direction, that do not see each other.

    torch's LSTM; unlike bilm-tf's it does not clip cells and projections (at 3).

    Args:
        size: P, width of inputs and outputs of one direction.
        cells: width of an LSTM's cell.
        residual: add the inputs to the outputs; bilm-tf does from the second layer on.
    """

    def __init__(self, size: int, cells: int, *, residual: bool, dropout: float) -> None:
        super().__init__()
        projection = size if size < cells else 0
        self.forward_lstm, self.backward_lstm = (
            nn.LSTM(size, cells, batch_first=True, proj_size=projection) for _ in range(2)
        )
        for lstm in (self.forward_lstm, self.backward_lstm):  # remember at first
            cast(Tensor, lstm.bias_ih_l0).data[cells : 2 * cells] = 1.0
            lstm.stacked = {"weight_ih_l0": 4, "weight_hh_l0": 4}  # gates
        self.residual = residual
        self.dropout = Dropout(dropout)

    def forward(
        self, hidden: Tensor, layout: BatchLayout, positions: Tensor | None = None
    ) -> Tensor:
        """Return the states, float [B, L, D], or [N, D] at flat `positions`; D as of `hidden`."""
        assert layout.flat_positions is None
        with torch.autocast(hidden.device.type, enabled=False):  # LSTMs are computed in fp32
            ahead, behind = hidden.float().chunk(2, dim=-1)
            order = reversal(layout, hidden.device)
            index = order[:, :, None].expand_as(behind)
            backward = self.backward_lstm(behind.gather(1, index))[0].gather(1, index)
            states = torch.cat([self.forward_lstm(ahead)[0], backward], dim=-1)
        states = self.dropout(states)
        return gather_positions(states + hidden if self.residual else states, positions)


def reversal(layout: BatchLayout, device: torch.device) -> Tensor:
    """Return positions that reverse each row's real tokens and leave padding, int64 [B, L]."""
    rows, length = layout.shape
    positions = torch.arange(length, device=device).expand(rows, length)
    if layout.real is None:
        return positions.flip(1)
    return torch.where(layout.real, layout.real.sum(dim=1, keepdim=True) - 1 - positions, positions)


class BiLmEncoder(Encoder):
    """Character embeddings and `BiLmLayer`s; takes padded rows of one sequence each."""

    supports_unpadding = False

    def __init__(self, embeddings: CharacterEmbeddings, layers: Sequence[BiLmLayer]) -> None:
        super().__init__(cast(Embeddings, embeddings), layers)


class TableEncoder(Encoder):
    """Encoder without layers: the states are the embeddings."""

    def run(self, hidden: Tensor, layout: BatchLayout, positions: Tensor | None = None) -> Tensor:
        return gather_positions(hidden, positions)


class BiLmHead(VocabularyHead):
    """Softmax over the first S words, shared by both directions.

    Args:
        words: S.
        every_word: S is V.
    """

    def __init__(self, size: int, words: int, *, every_word: bool) -> None:
        super().__init__()
        self.per_piece = ("weight", "bias") if every_word else ()
        self.weight = nn.Parameter(torch.empty(words, size))
        self.bias = nn.Parameter(torch.zeros(words))
        nn.init.normal_(self.weight, std=size**-0.5)

    def forward(self, hidden: Tensor) -> Any:
        """Map one direction's states, float [..., P], to logits [..., S]."""
        # oneDNN computes the gradient of products with a view a thousand times slower
        return self.project(hidden.contiguous(), self.weight, self.bias)


class BiLmModel(nn.Module):
    """Language models in both directions, and their common head (Peters et al., 2018, 3.1)."""

    pooler = None

    def __init__(self, encoder: BiLmEncoder, bilm: BiLmHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.bilm = bilm

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `hidden` [B, L, D], and `forward_logits` and `backward_logits`, [B, L, S].

        Position t predicts words t + 1 and t - 1; the batch's masks are removed.
        """
        hidden = encode(self.encoder, unmask(batch), batch)
        ahead, behind = hidden.chunk(2, dim=-1)
        logits = {"forward_logits": self.bilm(ahead), "backward_logits": self.bilm(behind)}
        return {"hidden": hidden, **logits}


UNKNOWN = 1  # id of [UNK] in word vocabularies (`cloze.pipeline.vocab.trainers`)


def bilm_loss(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the mean of the forward and the backward loss, of every pair of adjacent words.

    Args:
        outputs: `forward_logits` and `backward_logits`, float [B, L, S]; position t predicts words
            t + 1 and t - 1. Words from S on are predicted as [UNK].
        batch: masks are undone, and padding is ignored.
    """
    ids, real = unmask(batch), next_tokens(batch)
    total, correct = [], []
    for name, words, edge in (
        ("forward_logits", ids[:, 1:], (0, 1)),
        ("backward_logits", ids[:, :-1], (1, 0)),
    ):
        logits = flat(outputs[name])
        size = logits.shape[-1] if isinstance(logits, Tensor) else len(logits.weight)
        words = torch.where(words < size, words, UNKNOWN)
        labels = pad(words.masked_fill(~real, IGNORE_INDEX), edge, value=IGNORE_INDEX)
        loss, hits = summed_cross_entropy(logits, labels.flatten())
        total.append(loss)
        correct.append(hits)
    return (total[0] + total[1]) / 2, (correct[0] + correct[1]) // 2


BILM = Objective(
    name="bilm",
    targets=next_tokens,
    loss=bilm_loss,
    random_loss=math.log,
    head="bilm",
    reads="causal",
)
