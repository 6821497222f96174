"""Text that spells a special token stays text, for every kind of model that a tokenizer has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.backends import albert_backend, bert_backend, t5_backend
from cloze.pipeline.tokenizer.special import ALBERT, BERT, ROBERTA
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.pipeline.tokenizer.texts import trained_spiece

LETTERS = [*"abcdefghijklmnopqrstuvwxyz<>[]/_|0123456789 ,.", *"ADEIKLMNPQSTUC"]
UNIGRAM = [("▁", -2.0), ("▁the", -1.0), *((letter, -4.0) for letter in LETTERS if letter != " ")]
NAMES = [*ALBERT, *BERT, *ROBERTA, "<extra_id_0>", "<extra_id_7>", "<eod>", "[MASK]s", "a<s>b"]


def albert() -> tokenizers.Tokenizer:
    special = [(name, 0.0) for name in ALBERT]
    return albert_backend([*special, *UNIGRAM], 1, lowercase=False, strip_accents=False)


def t5() -> tokenizers.Tokenizer:
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return t5_backend([*special, *UNIGRAM], 2, None, sentinels=10)


def fairseq() -> tokenizers.Tokenizer:
    """As XLM-R's: the mask is behind the model's pieces, and a token of a word behind it."""
    special = [(name, 0.0) for name in ROBERTA[:4]]
    backend = tokenizers.Tokenizer(models.Unigram([*special, *UNIGRAM], 3, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True), *ROBERTA[:4]])
    backend.add_tokens(["covid"])
    return backend


def words_between_spaces() -> tokenizers.Tokenizer:
    vocab = {word: number for number, word in enumerate([*BERT, "the", "cat"])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def wordpiece_between_spaces() -> tokenizers.Tokenizer:
    vocab = {word: number for number, word in enumerate([*BERT, *LETTERS])}
    vocab |= {f"##{letter}": len(vocab) + number for number, letter in enumerate(LETTERS)}
    backend = bert_backend(vocab, lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def bpe(ignore_merges: bool) -> tokenizers.Tokenizer:
    """A BPE whose merges build `<s>`, as its trainer learns from text with that name in it."""
    vocab = {piece: number for number, piece in enumerate([*ROBERTA, *LETTERS, "<s"])}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, [("<", "s"), ("<s", ">")], unk_token="<unk>", ignore_merges=ignore_merges)
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def named_as_words() -> tokenizers.Tokenizer:
    """A file that lists the mask among its added tokens as no special one."""
    backend = bert_backend({word: i for i, word in enumerate([*BERT, *LETTERS])}, lowercase=False)
    content = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["special"] = False
    return tokenizers.Tokenizer.from_str(json.dumps(content))


BACKENDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "albert": albert,
    "t5": t5,
    "fairseq": fairseq,
    "words": words_between_spaces,
    "wordpiece": wordpiece_between_spaces,
    "bpe": lambda: bpe(False),
    "whole words of a bpe": lambda: bpe(True),
    "mask is no special token": named_as_words,
}
LOADED = {name: Tokenizer.of(make(), name) for name, make in BACKENDS.items()}


@pytest.mark.parametrize("kind", LOADED)
@settings(max_examples=40)
@given(parts=st.lists(st.sampled_from([*NAMES, "the", "cat", " ", ",", "<", ">"]), max_size=12))
def test_text_names_no_special_token(kind: str, parts: list[str]) -> None:
    tokenizer = LOADED[kind]
    special = tokenizer.special
    for text in ("".join(parts), " ".join(parts)):
        ids = tokenizer.encode_batch([text])[0]
        assert not {special.pad, special.cls, special.sep, special.mask}.intersection(ids), text
        assert next(token for token, _ in tokenizer.encode_with_offsets([text])) == ids
        many, _ = tokenizer.encode_flat([text] * 100)  # from the cache of words
        assert many.tolist() == ids * 100
        flagged = {
            token.content: number
            for number, token in tokenizer.backend.get_added_tokens_decoder().items()
            if token.special
        }
        assert not set(flagged.values()).difference({special.unk}).intersection(ids), text


@pytest.mark.parametrize("kind", ["albert", "t5", "fairseq", "bpe"])
def test_the_name_of_the_unknown_token_is_its_letters(kind: str) -> None:
    tokenizer = LOADED[kind]
    ids = tokenizer.encode_batch(["the <unk>"])[0]
    assert tokenizer.special.unk not in ids
    assert tokenizer.decode(ids).replace(" ", "").replace("▁", "") == "the<unk>"


def test_what_is_no_special_token_keeps_its_id() -> None:
    tokenizer = LOADED["fairseq"]
    (ids,) = tokenizer.encode_batch(["the covid <mask>"])
    covid = tokenizer.backend.token_to_id("covid")
    assert covid in ids
    assert tokenizer.special.mask not in ids
    for text in ("the cat", "cat, the [cat]", "2,19 <the>"):
        assert (
            tokenizer.encode_batch([text])[0]
            == tokenizer.backend.encode(text, add_special_tokens=False).ids
        )


@pytest.mark.parametrize("kind", LOADED)
def test_a_text_to_fill_names_its_mask_alone(kind: str) -> None:
    tokenizer = LOADED[kind]
    mask = tokenizer.backend.id_to_token(tokenizer.special.mask)
    others = {tokenizer.special.pad, tokenizer.special.cls, tokenizer.special.sep}
    text = f"the {mask} cat <s> [SEP] </s> <pad>"
    ids = tokenizer.backend_naming([mask]).encode(text, add_special_tokens=False).ids
    assert ids.count(tokenizer.special.mask) == 1
    assert not others.difference({tokenizer.special.mask}).intersection(ids)


@pytest.mark.parametrize("t5_form", [False, True])
def test_names_are_read_as_sentencepiece_reads_them(tmp_path: Path, t5_form: bool) -> None:
    """SentencePiece's author: control symbols are never made from text (google/sentencepiece#102)."""
    sentencepiece = pytest.importorskip("sentencepiece")
    options: dict[str, Any] = {"user_defined_symbols": ["<eop>"]}
    if t5_form:
        options |= {"unk_id": 2, "eos_id": 1, "control_symbols": ["<eod>"]}
    else:
        options |= {"control_symbols": ["[CLS]", "[SEP]", "[MASK]", "<eod>"]}
    path = trained_spiece(tmp_path, vocab_size=150, normalization_rule_name="identity", **options)
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    saved = tmp_path / "spiece.model"
    Path(path).rename(saved)
    tokenizer = load(str(tmp_path)) if t5_form else load(str(saved), lowercase=False)
    for text in ("the </s> tag", "a <pad> mark", "the <unk> mark", "<eod> the <eop>", "no<eod>no"):
        (ids,) = tokenizer.encode_batch([text])
        assert ids == model.encode(text), text
