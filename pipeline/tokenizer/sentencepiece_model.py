"""SentencePiece models (`spiece.model`): the few fields of the protobuf that a tokenizer follows from.

The format is protobuf's wire format: numbered fields, each a varint, eight bytes, a byte string, or four bytes. Field numbers are
those of google/sentencepiece, sentencepiece_model.proto. It is read here because the class that the sentencepiece package ships for it wants
a newer protobuf than Apache Beam allows, and the library itself does not tell the normalization: docs/decisions.md, "Vocabularies".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.core.errors import DataError

UNIGRAM = 1
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """What is read of a model.

    Attributes:
        pieces: with their scores; the id is the place.
        types: of the pieces: NORMAL, UNKNOWN, CONTROL, ….
        model_type: UNIGRAM, or another of MODEL_TYPES.
        charsmap: the compiled normalization, empty where there is none.
    """

    pieces: tuple[tuple[str, float], ...]
    types: tuple[int, ...]
    model_type: int
    charsmap: bytes


def parse(data: bytes, name: str) -> SentencePieceModel:
    """Read a model; `name` is its file, for messages.

    Raises:
        DataError: the bytes are no SentencePiece model.
    """
    pieces, types, model_type, charsmap = [], [], UNIGRAM, b""
    try:
        for number, value in _fields(data):
            if number == 1 and isinstance(value, bytes):
                piece = dict(_fields(value))
                text, score = piece.get(1, b""), piece.get(2, 0.0)
                if not isinstance(text, bytes) or not isinstance(score, float):
                    raise ValueError("a piece that is none")
                pieces.append((text.decode("utf-8"), score))
                types.append(int(piece.get(3, NORMAL)))
            elif number == 2 and isinstance(value, bytes):
                model_type = int(dict(_fields(value)).get(3, UNIGRAM))
            elif number == 3 and isinstance(value, bytes):
                found = dict(_fields(value)).get(2, b"")
                charsmap = found if isinstance(found, bytes) else b""
    except (ValueError, IndexError, struct.error) as error:
        raise DataError(f"{name} is no SentencePiece model ({error}); fetch it again") from error
    if not pieces:
        raise DataError(f"{name} is no SentencePiece model (it holds no pieces); fetch it again")
    return SentencePieceModel(pieces=tuple(pieces), types=tuple(types), model_type=model_type, charsmap=charsmap)


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a message, in order."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield number, value
        elif kind == 2:
            length, place = _varint(data, place)
            if place + length > len(data):
                raise ValueError(f"a field of {length} bytes is cut off")
            yield number, data[place : place + length]
            place += length
        elif kind == 5:
            yield number, struct.unpack_from("<f", data, place)[0]
            place += 4
        elif kind == 1:
            yield number, struct.unpack_from("<d", data, place)[0]
            place += 8
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
