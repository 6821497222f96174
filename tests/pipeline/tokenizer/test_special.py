"""Which tokens of a vocabulary have which role, and which of them start a word."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.pipeline.tokenizer.special import (
    ALBERT,
    BERT,
    ROBERTA,
    SpecialTokens,
    decode_byte_piece,
    flatten_sequence,
    special_names,
    word_starts,
)

ROLES = ("pad", "unk", "cls", "sep", "mask")


@pytest.mark.parametrize(
    ("vocab", "names"),
    [
        (BERT, BERT),
        (ALBERT, ALBERT),
        (ROBERTA, ("<pad>", "<unk>", "<s>", "</s>", "<mask>")),
        ((*BERT, *ROBERTA), BERT),  # the first of its names
        (("<pad>", "</s>", "<unk>", "<extra_id_0>"), ("<pad>", "<unk>", "<pad>", "</s>", "<extra_id_0>")),
        ((*BERT, "<extra_id_0>"), BERT),  # T5's only where its own are absent
        (("<|endoftext|>", "a"), ("<|endoftext|>",) * 5),
        (("<|endoftext|>", "[PAD]"), ("[PAD]", *("<|endoftext|>",) * 4)),
        (("<|endoftext|>", "<s>"), ("[PAD]", "[UNK]", "<s>", "[SEP]", "[MASK]")),
        (("a", "b"), BERT),
        ((), BERT),
    ],
)  # fmt: skip
def test_each_role_has_a_token(vocab: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert special_names(vocab) == dict(zip(ROLES, names, strict=True))


@pytest.mark.parametrize(
    ("part", "types"),
    [
        (None, []),
        ({"type": "NFC"}, ["NFC"]),
        ({"type": "Sequence", "normalizers": []}, []),
        ({"type": "Sequence"}, []),
        (
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split"},
                    {"type": "Sequence", "pretokenizers": [{"type": "A"}, {"type": "B"}]},
                    {"type": "ByteLevel"},
                ],
            },
            ["Split", "A", "B", "ByteLevel"],
        ),
        ({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}, ["NFC", "Strip"]),
    ],
)  # fmt: skip
def test_steps_of_steps_are_one_after_the_other(part: Any, types: list[str]) -> None:
    assert [step["type"] for step in flatten_sequence(part)] == types


BYTES = {"type": "ByteLevel"}


def starting(
    pieces: str, special: tuple[str, ...] = (), before: Any = None, **model: Any
) -> set[str]:
    """The pieces that start a word."""
    vocab = {piece: number for number, piece in enumerate(pieces.split())}
    description = {"model": {"type": "BPE", **model}, "pre_tokenizer": before}
    starts = word_starts(description, vocab, len(vocab), special)
    assert starts.shape == (len(vocab),)
    return {piece for piece, number in vocab.items() if starts[number]}


def test_words_of_wordpiece() -> None:
    found = starting("[CLS] a ##b , ##, 市", ("[CLS]",), continuing_subword_prefix="##")
    assert found == {"[CLS]", "a", ",", "市"}


def test_words_of_bytes() -> None:
    assert starting("<s> Ġa a Ċ Ġ , Ġ( ä¸Ń", ("<s>",), BYTES) == {
        "<s>",
        "Ġa",
        "Ċ",
        "Ġ",
        "Ġ(",
        "ä¸Ń",
    }
    inner = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, BYTES]}
    assert starting("Ġa a", (), inner) == {"Ġa"}


@pytest.mark.parametrize(
    ("unknown", "starts"), [(0, {"</s>", "▁a", "▁", "中"}), (None, {"<unk>", "</s>", "▁a", "▁", "中"})]
)  # fmt: skip
def test_words_of_unigram(unknown: int | None, starts: set[str]) -> None:
    """Its unknown token stands for a part of a word."""
    pieces, special = "<unk> </s> ▁a a ▁ , 中", ("<unk>", "</s>")
    assert starting(pieces, special, type="Unigram", unk_id=unknown) == starts


def test_each_token_is_a_word_where_none_is_marked() -> None:
    assert starting("a b <s>", ("<s>",)) == {"a", "b", "<s>"}
    assert starting("a ▁b <s>", ("<s>", "absent")) == {"▁b", "<s>"}
    assert starting("a b ▁<s>", ("▁<s>",)) == {"a", "b", "▁<s>"}  # a special one marks nothing


@pytest.mark.parametrize(
    ("piece", "text"),
    [("Ġa", " a"), ("Ċ", "\n"), ("Ã©", "é"), ("Ã", "\ufffd"), ("a", "a"), ("▁a", "▁a"), ("", "")],
)
def test_the_text_of_bytes(piece: str, text: str) -> None:
    assert decode_byte_piece(piece) == text


def test_a_text_begins_with_its_first_special_token_unless_that_is_the_padding() -> None:
    bert = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    t5 = SpecialTokens(pad=0, unk=2, cls=0, sep=1, mask=32)
    assert (bert.begins, bert.ids) == ((2,), (0, 1, 2, 3, 4))
    assert (t5.begins, t5.ids) == ((), (0, 2, 0, 1, 32))
