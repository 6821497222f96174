"""The task kind relation: a label for two marked entities of a text, or of a pair of texts.

Entities are between tags in the text, `<e1>…</e1>` and `<e2>…</e2>`, as in SemEval-2010's file. For
the model, markers replace the tags; the classifier reads the states of both opening markers
("entity start" of Baldini Soares et al. 2019, 3.2 and 3.3).

Markers are tokens that the vocabulary has, so the checkpoint keeps its embeddings and tokenizer: by
default punctuation marks, `@ Bill @` and `# Paris #`, typed `@ * person * Bill @` (Zhou and Chen
2022, table 1). BERT's own vocabulary has unused tokens: --set
'options.markers=["[unused1]","[unused2]","[unused3]","[unused4]"]' gives new tokens as in the
paper.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core.errors import DataError, UsageError
from cloze.labs.relations.tasks import RelationOptions
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.tasks.encode import TextSamples, framed, truncate
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.heads import TokenClassifier
from cloze.model.tasks.kinds.texts import Classification
from cloze.model.tasks.options import TaskOptions
from cloze.model.tasks.task import TaskMetadata
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

RELATION_HEAD = "relation"
MARKS = "marks"  # batch entry: int64 [B, 2], positions of both opening markers
TAG = re.compile(r"<(/?)e([12])(?::([^<>]*))?>")  # closing, entity, type
TAGS = ("<e1>", "</e1>", "<e2>", "</e2>")
LOST = "marker"  # reason for a lost answer


class MarkerClassifier(TokenClassifier):
    """Linear layer on the concatenated states of both opening markers."""

    def states(self, batch: Mapping[str, Any]) -> Tensor:
        """Return float [B, 2 * D]."""
        hidden = super().states(batch)
        rows = torch.arange(len(hidden), device=hidden.device)[:, None]
        return hidden[rows, batch[MARKS]].flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marked:
    """Tokens of a text with its markers.

    Attributes:
        fixed: positions of all tokens of markers and types.
        starts: position of the first token of the opening marker, by entity.
    """

    tokens: Sequence[int]
    fixed: Sequence[int]
    starts: Mapping[str, int]

    def shortened(self, count: int) -> _Marked:
        """Return the text with the `count` tokens nearest to a marker."""
        positions = np.arange(len(self.tokens))
        distances = positions
        if self.fixed:
            distances = np.abs(positions[:, None] - np.array(self.fixed)).min(axis=1)
        kept = np.sort(np.argsort(distances, kind="stable")[:count]).tolist()
        places = {position: place for place, position in enumerate(kept)}
        return _Marked(
            tokens=[self.tokens[position] for position in kept],
            fixed=[places[position] for position in self.fixed if position in places],
            starts={name: places[start] for name, start in self.starts.items() if start in places},
        )


class Relation(Classification):
    """One label per pair of entities; metrics: `core.label_metrics`."""

    options: RelationOptions

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        has_negative = bool(getattr(options, "negative", ""))
        usual = ("micro_f1", "accuracy") if has_negative else ("accuracy", "macro_f1")
        super().__init__(name, options, metrics or usual)
        if self.options.pair_features:
            raise UsageError(
                f"options.pair_features (true) means nothing to task {name}, whose classifier "
                f"reads two entities; leave it out"
            )

    def read(self, path: str, split: str, limit_per_class: int | None) -> LabelledTexts:
        """Read the examples; the negative label is class 0."""
        examples = super().read(path, split, limit_per_class)
        if negative := self.options.negative:
            others = [name for name in examples.label_names if name != negative]
            examples = examples.relabelled([negative, *others])
        texts = [self._tagged(text) for text in examples.texts]
        examples = dataclasses.replace(examples, texts=texts)
        _check_tags(examples)
        return examples

    def _tagged(self, text: str) -> str:
        """Replace the file's delimiters by tags; each occurs once, the closing one last."""
        begin = 0
        for delimiter, tag in zip(self.options.delimiters, TAGS, strict=False):
            begin = text.find(delimiter, begin if tag.startswith("</") else 0)
            if begin < 0:
                break
            text = text[:begin] + tag + text[begin + len(delimiter) :]
        return text

    def heads(self, metadata: TaskMetadata) -> dict[str, Any]:
        return {RELATION_HEAD: {"num_labels": self.outputs(metadata)}}

    def network(
        self, backbone: Backbone, config: ModelConfig, metadata: TaskMetadata, dropout: float
    ) -> nn.Module:
        labels = self.outputs(metadata)
        return MarkerClassifier(backbone, 2 * config.hidden_size, labels, dropout, RELATION_HEAD)

    def encode(self, examples: LabelledTexts, tokenizer: Tokenizer, max_length: int) -> TextSamples:
        """Encode the texts with markers; long ones keep the tokens nearest to a marker.

        An example whose markers do not fit is counted as lost, and read at [CLS] instead.
        """
        _check_tags(examples)
        pair = () if examples.text_pairs is None else (examples.text_pairs,)
        texts = [self._marked(own, tokenizer) for own in (examples.texts, *pair)]  # by side
        room = max_length - tokenizer.frame_size(pair=bool(pair))
        truncated = lost = 0
        for i, own in enumerate(zip(*texts, strict=True)):
            lengths = [len(text.tokens) for text in own]
            counts = truncate(lengths[0], sum(lengths[1:]), room)
            for number, (text, count) in enumerate(zip(own, counts, strict=False)):
                texts[number][i] = text.shortened(count)
            truncated += sum(lengths) > room
            lost += any(
                len(texts[number][i].fixed) < len(text.fixed) for number, text in enumerate(own)
            )
        tokens = [[text.tokens for text in side] for side in texts]
        other = tokens[1] if pair else None
        samples = framed(tokens[0], other, tokenizer, max_length, self.targets(examples))
        marks = np.zeros((len(examples), 2), dtype=np.int64)
        begins_by_side = (
            np.full_like(samples.second, len(tokenizer.special.begins)),
            samples.second,
        )
        for marked, begins in zip(texts, begins_by_side, strict=False):
            for i, text in enumerate(marked):
                for entity, start in text.starts.items():
                    marks[i, int(entity) - 1] = begins[i] + start
        return dataclasses.replace(
            samples,
            targets={**samples.targets, MARKS: marks},
            truncated=truncated,
            dropped_counts={LOST: lost} if lost else {},
        )

    def _marked(self, texts: Sequence[str], tokenizer: Tokenizer) -> list[_Marked]:
        """Tokenize texts, with markers for their tags."""
        parts = [TAG.split(text) for text in texts]  # piece, then closing, entity, type, piece …
        pieces = [own[::4] for own in parts]
        follows_space = [
            bool(piece.strip()) and i > 0 and (piece[0].isspace() or own[i - 1][-1:].isspace())
            for own in pieces
            for i, piece in enumerate(own)
        ]
        flat = [piece.strip() for own in pieces for piece in own]
        ids, offsets = tokenizer.encode_flat(flat, np.array(follows_space, dtype=np.bool_))
        pieces_left = iter(np.split(ids, offsets[1:-1]))
        markers, types = self._markers(tokenizer), self._types(parts, tokenizer)
        marked = []
        for own in parts:
            tokens, fixed, starts = list[int](next(pieces_left).tolist()), list[int](), {}
            for closing, entity, kind in zip(own[1::4], own[2::4], own[3::4], strict=True):
                marker = list(markers[f"<{closing}e{entity}>"])
                if not closing:
                    starts[entity] = len(tokens)
                    marker += types.get(kind, [])
                fixed += range(len(tokens), len(tokens) + len(marker))
                tokens += [*marker, *next(pieces_left).tolist()]
            marked.append(_Marked(tokens=tokens, fixed=fixed, starts=starts))
        return marked

    def _types(
        self, parts: Sequence[Sequence[str | None]], tokenizer: Tokenizer
    ) -> dict[str | None, list[int]]:
        """Return the tokens of each type, such as * person *; empty without `typed`."""
        if not self.options.typed:
            return {}
        types = sorted({kind for own in parts for kind in own[3::4] if kind})
        names = [f"* {kind.lower().replace('_', ' ')} *" for kind in types]
        return dict(zip(types, tokenizer.encode_batch(names), strict=True))

    def _markers(self, tokenizer: Tokenizer) -> dict[str, list[int]]:
        """Return the tokens of the marker for each tag.

        Raises:
            UsageError: the vocabulary lacks a marker.
        """
        markers = {}
        for tag, text in zip(TAGS, self.options.markers, strict=True):
            number = tokenizer.backend.token_to_id(text)
            markers[tag] = tokenizer.encode_batch([text])[0] if number is None else [number]
            if not markers[tag] or tokenizer.special.unk in markers[tag]:
                raise UsageError(
                    f"options.markers has {text!r}, which the vocabulary lacks; use other tokens, "
                    f"such as [unused1] or punctuation marks"
                )
        return markers


def _check_tags(examples: LabelledTexts) -> None:
    """Check that each example has both entities, each in one text.

    Raises:
        DataError: a tag is missing, repeated or at the wrong place; the message names the line.
    """
    pairs = examples.text_pairs or [""] * len(examples)
    for i, texts in enumerate(zip(examples.texts, pairs, strict=True)):
        tags = [[f"<{closing}e{entity}>" for closing, entity, _ in TAG.findall(t)] for t in texts]
        entities = [[tag for tag in own if entity in tag] for entity in "12" for own in tags]
        if sorted(filter(None, entities)) != [["<e1>", "</e1>"], ["<e2>", "</e2>"]]:
            location = examples.locations[i] if examples.locations else f"text {i + 1}"
            raise DataError(
                f"{location}: no two entities between <e1>, </e1> and <e2>, </e2> (found "
                f"{' '.join(chain(*tags)) or 'no tag'}); mark them, or set options.delimiters"
            )
