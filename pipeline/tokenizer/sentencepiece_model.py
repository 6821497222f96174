"""A reader of SentencePiece models (`spiece.model`).

It parses protobuf's wire format: numbered fields, each a varint, eight bytes, a byte string, or
four bytes. Field numbers are from google/sentencepiece, sentencepiece_model.proto. The class in the
sentencepiece package needs a newer protobuf than Apache Beam allows, and the library does not
expose the normalization (docs/decisions/tokenizers.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import tokenizers

from cloze.core.errors import DataError

UNIGRAM = 1
NORMAL, UNKNOWN = 1, 2
NEVER_IN_TEXT = (3, 5, 6)  # control, unused, byte: SentencePiece makes none of them from text
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """The fields of a SentencePiece model that define a tokenizer."""

    pieces: tuple[tuple[str, float], ...]  # tokens with their scores; the index is the id
    types: tuple[int, ...]  # type of each token: NORMAL, UNKNOWN, NEVER_IN_TEXT, or user-defined
    model_type: int  # UNIGRAM, or another of MODEL_TYPES
    charsmap: bytes  # compiled normalization; empty if there is none


def parse(data: bytes, name: str) -> SentencePieceModel:
    """Parse a model; `name` is its file, for messages.

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
                    raise ValueError("a malformed piece")
                pieces.append((text.decode("utf-8"), score))
                types.append(int(piece.get(3, NORMAL)))
            elif number == 2 and isinstance(value, bytes):
                model_type = int(dict(_fields(value)).get(3, UNIGRAM))
            elif number == 3 and isinstance(value, bytes):
                compiled = dict(_fields(value)).get(2, b"")
                charsmap = compiled if isinstance(compiled, bytes) else b""
        if not pieces:
            raise ValueError("it has no pieces")
    except (ValueError, IndexError, struct.error) as error:
        raise DataError(f"{name} is no SentencePiece model ({error}); fetch it again") from error
    return SentencePieceModel(
        pieces=tuple(pieces), types=tuple(types), model_type=model_type, charsmap=charsmap
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield number and value of each field of a message, in order."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, offset = _varint(data, offset)
            yield number, value
        elif kind == 2:
            length, offset = _varint(data, offset)
            if offset + length > len(data):
                raise ValueError(f"a field of {length} bytes is cut off")
            yield number, data[offset : offset + length]
            offset += length
        elif kind == 5:
            yield number, struct.unpack_from("<f", data, offset)[0]
            offset += 4
        elif kind == 1:
            yield number, struct.unpack_from("<d", data, offset)[0]
            offset += 8
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the number at `offset`, and the offset after it."""
    value, shift = 0, 0
    while True:
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
        if shift > 63:
            raise ValueError("a number of more than ten bytes")


def add_control_tokens(backend: tokenizers.Tokenizer, model: SentencePieceModel) -> None:
    """Register what SentencePiece never makes from text, so that a saved file knows it."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens(
        [
            piece
            for (piece, _), kind in zip(model.pieces, model.types, strict=True)
            if kind in NEVER_IN_TEXT and piece not in known
        ]
    )
