"""A readable view of one row of a dataset: tokens as text, masks, and the meaning of the label.

`cloze inspect` prints a `RowView`, in colours or as JSON.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import REBUILD, arrow_errors_as_data_errors, open_arrow
from cloze.core.artifacts.artifact import SPLITS
from cloze.core.errors import DataError, UsageError, did_you_mean
from cloze.pipeline.dataset.pairings.registry import label_names
from cloze.pipeline.dataset.schema import DatasetInfo, ShardLayout

TOKENIZER = "tokenizer"
MASKED, RANDOM, UNCHANGED = "masked", "random", "kept"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted position: the original token, the token shown, and masked, random or kept."""

    position: int
    original: str
    shown: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """A row."""

    file: str
    split: str
    row: int
    rows: int
    recipe: str
    document: int
    offset: int
    drawing: int
    drawings: int
    copy: int
    copies: int
    pair_task: str | None
    pair_label: str | None  # meaning of the label, or None
    segment_start: int
    # tokens of the row (`row`), and of segments A and B without special tokens
    lengths: dict[str, int]
    boundaries: tuple[int, ...] | None  # start of each sequence of a packed row, else None
    special: tuple[int, ...]  # positions of special tokens
    pieces: tuple[str, ...]  # tokens of the unmasked row by name: `##ing`, `Ġthe`
    texts: tuple[str, ...]  # text that each token adds, its space included
    text: str  # the unmasked row
    predictions: tuple[Prediction, ...]

    def as_json(self) -> dict[str, Any]:
        # 64 bits: too many for a JSON number in many readers
        content = {**asdict(self), "document": str(self.document)}
        content.pop("texts")
        return content


def read_row(path: str, row: int, *, split: str = "train", copy: int = 0) -> RowView:
    """Read a row.

    Args:
        path: a dataset artifact, a directory of shards, or one shard.
        row: index in the split, over all shards in name order; in a single shard, index in it.
        split: train or heldout; ignored for a single shard.

    Raises:
        UsageError: the split, row or copy does not exist.
        DataError: nothing is at `path`, or a shard is damaged.
    """
    if split not in SPLITS:
        raise UsageError(f"split ({split}) is unknown; {did_you_mean(split, SPLITS)}")
    files, split = _files(path, split)
    remaining, selected = row, None
    for file in files:
        reader = open_arrow(file)
        info = DatasetInfo.from_schema(reader.schema, file)
        for number, size in enumerate(_sizes(reader, file)):
            if selected is None and 0 <= remaining < size:
                with arrow_errors_as_data_errors(file, REBUILD):
                    batch = reader.get_batch(number)
                    selected = file, info, batch.slice(remaining, 1).to_pylist()[0]
            remaining -= size
    total = row - remaining
    if selected is None:
        raise UsageError(
            f"row ({row}) is not one of the {total:,} rows of the split {split}; use 0 to "
            f"{total - 1}"
        )
    file, info, content = selected
    if not 0 <= copy < info.copies:
        raise UsageError(
            f"copy ({copy}) is not one of the {info.copies} mask copies; use 0 to {info.copies - 1}"
        )
    names = _TokenNames.of(posixpath.dirname(files[0]))
    return _view(content, info, names, copy, file=file, split=split, row=row, rows=total)


def _files(path: str, split: str) -> tuple[list[str], str]:
    """Return the shards and their split."""
    if path.endswith(".arrow"):
        return [path], posixpath.basename(path).split("-")[0]
    if not storage.exists(path):
        raise DataError(f"{path} does not exist; check the path")
    names = [
        name
        for name in storage.list_files(path)
        if name.startswith(f"{split}-") and name.endswith(".arrow")
    ]
    if not names:
        raise DataError(
            f"{path} has no shards of the split {split} ({split}-*.arrow); name a dataset that "
            f"`cloze dataset` made"
        )
    return [storage.join(path, name) for name in names], split


def _sizes(reader: pa.RecordBatchFileReader, file: str) -> list[int]:
    layout = ShardLayout.from_schema(reader.schema, file)
    if layout is not None:
        return [int(size) for size in layout.batches()]
    with arrow_errors_as_data_errors(file, REBUILD):
        return [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]


def _view(
    content: dict[str, Any], info: DatasetInfo, names: _TokenNames, copy: int, **position: Any
) -> RowView:
    """Return the view of a row's `content`; `position`: file, split, row and rows."""
    ids, label, start = content["input_ids"], content["pair_label"], content["segment_start"]
    frame = (info.special.cls, info.special.sep, info.special.pad)
    special = tuple(index for index, token in enumerate(ids) if token in frame)
    texts = tuple(names.texts(ids, special))
    text = "".join(
        f" {text.strip()} " if index in special else text for index, text in enumerate(texts)
    )
    label_name = None
    if label is not None and info.pair_task is not None:
        label_name = label_names(info.pair_task)[label].replace("_", " ")
    boundaries = content.get("boundaries")
    return RowView(
        **position,
        recipe=info.recipe,
        document=content["source"]["document"],
        offset=content["source"]["offset"],
        drawing=content["source"].get("drawing", 0),
        drawings=info.drawings,
        copy=copy,
        copies=info.copies,
        pair_task=info.pair_task,
        pair_label=label_name,
        segment_start=start,
        lengths={
            "row": len(ids),
            "A": start - sum(index < start for index in special),
            "B": len(ids) - start - sum(index >= start for index in special),
        },
        boundaries=None if boundaries is None else tuple(boundaries),
        special=special,
        pieces=tuple(map(names.piece, ids)),
        texts=texts,
        text=text.strip(),
        predictions=_predictions(ids, content["masks"][copy], info.special.mask, names),
    )


def _predictions(
    ids: list[int], mask: dict[str, list[int]], mask_id: int, names: _TokenNames
) -> tuple[Prediction, ...]:
    predictions = []
    for position, shown in zip(mask["positions"], mask["input_ids"], strict=True):
        original = ids[position]
        kind = MASKED if shown == mask_id else UNCHANGED if shown == original else RANDOM
        predictions.append(Prediction(position, names.piece(original), names.piece(shown), kind))
    return tuple(predictions)


class _TokenNames:
    """Token names and texts by the dataset's tokenizer; ids if there is no tokenizer."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._bytes = backend is not None and type(backend.decoder).__name__ == "ByteLevel"

    @classmethod
    def of(cls, directory: str) -> _TokenNames:
        from cloze.pipeline.tokenizer import load

        path = storage.join(directory, TOKENIZER)
        return cls(load(path).backend if storage.is_dir(path) else None)

    def piece(self, token: int) -> str:
        piece = None if self._backend is None else self._backend.id_to_token(token)
        return f"<{token}>" if piece is None else str(piece)

    def texts(self, ids: Sequence[int], special: Collection[int]) -> Iterator[str]:
        """Yield the text that each token adds, without the space before a segment.

        A character of several byte-level tokens comes with the last of them.

        Args:
            special: positions of special tokens.
        """
        from tokenizers.decoders import DecodeStream

        stream, opens = DecodeStream(), True
        for index, token in enumerate(ids):
            piece = text = self.piece(token)
            if index in special:
                stream = DecodeStream()
            elif self._bytes:
                text = stream.step(self._backend, token) or ""
            elif piece.startswith("▁"):
                text = " " + piece[1:]
            else:
                text = piece[2:] if piece.startswith("##") and len(piece) > 2 else " " + piece
            yield text.lstrip() if opens else text
            opens = index in special or (opens and not text)
