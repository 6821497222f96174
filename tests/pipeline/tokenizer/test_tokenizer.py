"""Loading tokenizers from all they come in, and encoding: text stays text, and the shortcut changes
nothing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from cloze.core.errors import DataError, UsageError
from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.special import SpecialTokens
from cloze.pipeline.tokenizer.word_cache import WordCache
from tests.pipeline.tokenizer.texts import AWKWARD

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [
    *(
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        "##ing",
        "sing",
        "mask",
        "un",
        "##able",
        "cafe",
    ),
    *(".,!?'\"[]-#"),
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
]


def write_vocab(path: Path, pieces: list[str] | None = None) -> str:
    path.write_text("".join(f"{piece}\n" for piece in pieces or PIECES), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def vocab_txt(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_vocab(tmp_path_factory.mktemp("vocab") / "vocab.txt")


def test_vocab_txt(vocab_txt):
    tokenizer = load(vocab_txt)
    assert tokenizer.vocab_size == len(PIECES)
    assert tokenizer.special == SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    assert tokenizer.lowercase
    assert tokenizer.word_start.tolist() == [not piece.startswith("##") for piece in PIECES]
    ids = tokenizer.encode_batch(["The CATS sing.", "", "unmaskable"])
    assert [[PIECES[i] for i in row] for row in ids] == [
        ["the", "cat", "##s", "sing", "."],
        [],
        ["un", *(f"##{c}" for c in "mask"), "##able"],
    ]
    assert tokenizer.decode(ids[0]) == "the cats sing."


def test_text_never_makes_a_special_token(vocab_txt):
    tokenizer = load(vocab_txt)
    ids, _ = tokenizer.encode_flat(["say [MASK] or [SEP][CLS]", "[MASK]"])
    assert not set(ids.tolist()) & {0, 2, 3, 4}
    assert [PIECES[i] for i in ids[-3:]] == ["[", "mask", "]"]
    assert tokenizer.backend.encode("[MASK]", add_special_tokens=False).ids == [4]  # inference may


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(
        st.one_of(
            st.sampled_from(AWKWARD),
            st.text(alphabet=st.characters(exclude_categories=["Cs"])),
            st.text(LETTERS + " .,'É"),
        ),
        max_size=8,
    )
)
def test_the_shortcut_equals_the_backend(vocab_txt, texts):
    for lowercase in (True, False):
        tokenizer = load(vocab_txt, lowercase)
        for _ in range(2):  # the second time from memory
            ids, offsets = tokenizer._memory.encode(texts)
            expected_ids, expected_offsets = tokenizer.encode_uncached(texts)
            assert ids.tolist() == expected_ids.tolist()
            assert offsets.tolist() == expected_offsets.tolist()
            assert tokenizer.encode_flat(texts * 20)[0].tolist() == expected_ids.tolist() * 20
            assert tokenizer.encode_batch(texts) == [
                e.ids for e in tokenizer._text_backend.encode_batch(texts, add_special_tokens=False)
            ]


def test_the_shortcut_equals_the_backend_on_real_text(shared_data):
    lines = (shared_data / "wikitext-2/valid.txt").read_text(encoding="utf-8").split("\n")[:2500]
    for name in ("uncased", "cased"):
        tokenizer = load(str(shared_data / f"vocab/bert_base_{name}_vocab.txt"))
        assert tokenizer.lowercase == (name == "uncased")
        for got, expected in zip(
            tokenizer.encode_flat(lines), tokenizer.encode_uncached(lines), strict=True
        ):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("limits", [{"max_words": 3}, {"max_characters": 10}])
def test_the_memory_forgets_and_stays_right(vocab_txt, limits):
    tokenizer = load(vocab_txt)
    memory = WordCache(tokenizer.encode_uncached, **limits)
    for texts in (["the cat", "sing unable"], ["cat the", "singing"], ["the cats"] * 3):
        for got, expected in zip(
            memory.encode(texts), tokenizer.encode_uncached(texts), strict=True
        ):
            np.testing.assert_array_equal(got, expected)


def test_the_memory_survives_a_failure(vocab_txt):
    tokenizer = load(vocab_txt)
    broken = iter([True, False])

    def encode(words):
        if next(broken):
            raise MemoryError
        return tokenizer.encode_uncached(words)

    memory = WordCache(encode)
    with pytest.raises(MemoryError):
        memory.encode(["the cat"])
    assert (
        memory.encode(["the cat"])[0].tolist() == tokenizer.encode_uncached(["the cat"])[0].tolist()
    )


def test_saved_files_are_read_back_alike(vocab_txt, tmp_path):
    tokenizer = load(vocab_txt)
    tokenizer.save(str(tmp_path / "a"))
    tokenizer.save(str(tmp_path / "b"))
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    for path in (tmp_path / "a", tmp_path / "a/tokenizer.json", tmp_path / "a/vocab.txt"):
        again = load(str(path))
        assert again.fingerprint == tokenizer.fingerprint
        assert again.special == tokenizer.special
        assert again.word_start.tolist() == tokenizer.word_start.tolist()
    assert load(vocab_txt, lowercase=False).fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize("lowercase", [True, False])
def test_transformers_opens_what_is_saved(vocab_txt, tmp_path, lowercase):
    transformers = pytest.importorskip("transformers")
    tokenizer = load(vocab_txt, lowercase)
    tokenizer.save(str(tmp_path))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    texts = [text for text in AWKWARD if "[" not in text]
    assert theirs(texts, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch(texts)
    pair = theirs("the cat", "sings")
    assert [PIECES[i] for i in pair["input_ids"]] == [
        "[CLS]",
        "the",
        "cat",
        "[SEP]",
        "sing",
        "##s",
        "[SEP]",
    ]
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert (theirs.mask_token_id, theirs.pad_token_id, len(theirs)) == (4, 0, len(PIECES))


def test_truncation_and_padding_of_a_tokenizer_json_are_ignored(vocab_txt, tmp_path):
    backend = load(vocab_txt).backend
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(load(str(tmp_path)).encode_batch(["the cat sings the cat sings"])[0]) == 8
    assert len(load(str(tmp_path)).encode_batch(["the"])[0]) == 1


def test_case(tmp_path):
    cased = write_vocab(tmp_path / "vocab.txt", [*PIECES, "The", "É"])
    assert not load(cased).lowercase
    assert load(cased, lowercase=True).lowercase
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert load(str(tmp_path)).lowercase
    assert not load(str(tmp_path), lowercase=False).lowercase
    load(cased).save(str(tmp_path / "saved"))
    assert not load(str(tmp_path / "saved")).lowercase
    assert load(str(tmp_path / "saved"), lowercase=True).encode_batch(["THE É"]) == load(
        cased, lowercase=True
    ).encode_batch(["THE É"])


ACCENTED = ["Pokémon café in Zürich, São Paulo", "Beyoncé", "हिन्दी में किताब", "தமிழ்"]


def test_accents_are_stripped_as_by_transformers(shared_data, tmp_path):
    """BERT does not strip the vowel signs that 32 of Google's uncased tokens have."""
    transformers = pytest.importorskip("transformers")
    shutil.copy(shared_data / "vocab/bert_base_uncased_vocab.txt", tmp_path / "vocab.txt")
    theirs = transformers.BertTokenizerFast.from_pretrained(str(tmp_path))
    ids = load(str(tmp_path / "vocab.txt")).encode_batch(ACCENTED)
    assert ids == theirs(ACCENTED, add_special_tokens=False)["input_ids"]
    assert theirs.unk_token_id not in ids[0]


@pytest.mark.parametrize(
    ("token", "kept"),
    [("x", False), ("ा", False), ("##ि", False), ("é", True), ("##ü", True), ("ी\u0902", True)],
)
def test_a_token_with_an_accent_keeps_accents(tmp_path, token, kept):
    path = write_vocab(tmp_path / "vocab.txt", [*PIECES, token])
    assert load(path).strips_accents != kept
    (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": null}')
    assert load(str(tmp_path)).strips_accents != kept
    if not kept:
        assert load(path).encode_batch(["Café"]) == load(path).encode_batch(["cafe"])


def test_line_ends_and_blank_lines_keep_ids(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(
        b"\r\n".join([b"[PAD]", b"", b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]", b"the", b""])
    )
    tokenizer = load(str(tmp_path / "vocab.txt"))
    assert tokenizer.special == SpecialTokens(pad=0, unk=2, cls=3, sep=4, mask=5)
    assert tokenizer.encode_batch(["the"]) == [[6]]
    assert tokenizer.vocab_size == 7
    tokenizer.save(str(tmp_path / "saved"))
    assert load(str(tmp_path / "saved/vocab.txt")).encode_batch(["the"]) == [[6]]


def test_byte_level_bpe(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, "Ġt"]
    backend = tokenizers.Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("Ġ", "t")])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(str(tmp_path / "tokenizer.json"))
    assert tokenizer.special == SpecialTokens(pad=1, unk=3, cls=0, sep=2, mask=4)
    [ids] = tokenizer.encode_batch(["a tin <mask>"])
    assert [pieces[i] for i in ids] == ["a", "Ġt", "i", "n", "Ġ", "<", "m", "a", "s", "k", ">"]
    assert tokenizer.word_start[ids].tolist() == [
        False,
        True,
        False,
        False,
        True,
        False,
        False,
        False,
        False,
        False,
        False,
    ]
    tokenizer.save(str(tmp_path / "saved"))
    assert load(str(tmp_path / "saved")).fingerprint == tokenizer.fingerprint
    with pytest.raises(UsageError, match="lowercase"):
        load(str(tmp_path / "tokenizer.json"), lowercase=True)


def broken(tmp_path: Path, kind: str) -> Path:
    """A tokenizer that is not one, and what of it the message must name."""
    path = tmp_path / ("tokenizer.json" if "json" in kind else "vocab.txt")
    if kind == "missing":
        return tmp_path / "nowhere"
    if kind == "directory":
        (tmp_path / "notes.md").write_text("x")
        return tmp_path
    if kind == "unfinished":
        write_vocab(path)
        (tmp_path / "_building.json").write_text("{}")
        return tmp_path
    content = {
        "empty": b"",
        "blank": b"\n\n",
        "latin-1": "[PAD]\nk\u00e4se\n".encode("latin-1"),
        "no mask": "".join(f"{piece}\n" for piece in PIECES if piece != "[MASK]").encode(),
        "json cut": b'{"version": "1.0", "model": {"type": "Word',
        "json other": json.dumps({"a": 1}).encode(),
        "json bytes": b"\xff\xfe",
    }
    path.write_bytes(content[kind])
    return path


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing", "does not exist"),
        ("directory", "has no tokenizer.json, vocab.txt"),
        ("unfinished", "unfinished"),
        ("empty", "is empty"),
        ("blank", "is empty"),
        ("latin-1", "not UTF-8"),
        ("no mask", r"no \[MASK\] token"),
        ("json cut", "is no tokenizer.json"),
        ("json other", "is no tokenizer.json"),
        ("json bytes", "not UTF-8"),
    ],
)
def test_bad_tokenizers_are_told_by_name(tmp_path, kind, says):
    path = broken(tmp_path, kind)
    with pytest.raises(DataError, match=says) as caught:
        load(str(path))
    assert str(path) in str(caught.value)
