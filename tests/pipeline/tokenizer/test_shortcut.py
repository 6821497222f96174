"""Byte-level BPE and Unigram: the shortcut changes nothing, words begin where white space ends,
transformers agrees.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.special import decode_byte_piece
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from cloze.pipeline.tokenizer.word_cache import word_split_rule
from cloze.pipeline.vocab.config import VocabConfig
from cloze.pipeline.vocab.trainers import train_bpe, train_unigram
from tests.pipeline.corpus.corpora import made_documents
from tests.pipeline.corpus.script_texts import TEXTS
from tests.pipeline.tokenizer.texts import AWKWARD, BLANKS, MARKS, TRAINING, trained_spiece

texts = st.lists(
    st.lists(
        st.one_of(
            st.sampled_from(BLANKS),
            st.sampled_from(MARKS),
            st.sampled_from(["ba", "code", ".", "9", "It's"]),
        ),
        max_size=9,
    ).map("".join),
    max_size=6,
) | st.lists(
    st.one_of(st.sampled_from(AWKWARD), st.text(alphabet=st.characters(exclude_categories=["Cs"]))),
    max_size=6,
)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """Every way in which the shortcut cuts, and every kind."""
    gpt = train_bpe(
        lambda: iter(TRAINING), VocabConfig(), size=400, lowercase=False, strip_accents=None
    )
    sentencepiece = train_unigram(
        lambda: iter(TRAINING),
        VocabConfig(limit_alphabet=100),
        size=200,
        lowercase=True,
        strip_accents=None,
    )
    prefixed = tokenizers.Tokenizer.from_str(gpt.to_str())
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    composed = tokenizers.Tokenizer.from_str(gpt.to_str())
    composed.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    directory = tmp_path_factory.mktemp("accents")
    trained_spiece(directory)
    (directory / "tokenizer_config.json").write_text(
        '{"do_lower_case": true, "keep_accents": true}'
    )
    return {
        "accents": load(str(directory)),
        "bpe": Tokenizer.of(gpt, "bpe"),
        "prefixed": Tokenizer.of(prefixed, "prefixed"),
        "composed": Tokenizer.of(composed, "composed"),
        "unigram": Tokenizer.of(sentencepiece, "unigram"),
    }


def agree(tokenizer: Tokenizer, given_texts: list[str], flags: np.ndarray | None) -> None:
    memory = tokenizer._memory
    assert memory is not None
    for _ in range(2):  # the second time from memory
        found, expected = (
            memory.encode(given_texts, flags),
            tokenizer.encode_uncached(given_texts, flags),
        )
        for got, wanted in zip(found, expected, strict=True):
            assert got.tolist() == wanted.tolist()


@settings(max_examples=100, deadline=None)
@given(given_texts=texts, seed=st.integers(0, 3))
def test_the_shortcut_equals_the_backend(kinds, given_texts, seed):
    flags = np.array([(seed >> (number % 2)) & 1 for number in range(len(given_texts))], np.bool_)
    for tokenizer in kinds.values():
        agree(tokenizer, given_texts, None)
        agree(tokenizer, given_texts, flags)


def test_after_space_is_a_space_before(kinds):
    for tokenizer in kinds.values():
        sentences = ["It stops.", "The code is known.", ""] * 40
        flags = np.array([False, True, True] * 40)
        got = tokenizer.encode_flat(sentences, flags)
        wanted = tokenizer.encode_flat(
            [" " * bool(flag) + text for text, flag in zip(sentences, flags, strict=True)]
        )
        assert all(np.array_equal(*pair) for pair in zip(got, wanted, strict=True))
        whole = tokenizer.encode_batch([" ".join(sentences[:2])])[0]
        assert got[0][: got[1][2]].tolist() == whole  # sentences of a document are its text


@pytest.mark.parametrize("kind", ["gpt2", "spiece"])
def test_the_shortcut_equals_the_backend_on_real_text(kinds, shared_data, tmp_path, kind):
    """Lines, whole blocks with their newlines and double spaces, and clean sentences."""
    path = shared_data / "vocab/gpt2_bpe_encoder.json"
    tokenizer = load(str(path)) if kind == "gpt2" else kinds["unigram"]
    if kind == "spiece":  # with SentencePiece's own normalization, as ALBERT's release has it
        tokenizer = load(trained_spiece(tmp_path))
        assert word_split_rule(tokenizer.description) == "marks"
    books = sorted((shared_data / "books/gutenberg").glob("*.txt"))[:2]
    text = "".join(book.read_text(encoding="utf-8", errors="replace")[:30_000] for book in books)
    text += (shared_data / "wikipedia/extracted/wiki_01").read_text(encoding="utf-8")[:60_000]
    for given_texts in (
        text.split("\n"),
        text.split("\n\n"),
        [" ".join(part.split()) for part in text.split("\n\n")],
    ):
        flags = np.arange(len(given_texts)) % 3 > 0
        for got, wanted in zip(
            tokenizer.encode_flat(given_texts, flags),
            tokenizer.encode_uncached(given_texts, flags),
            strict=True,
        ):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("change", ["dropout", "added", "regex", "first", "nfkc", "unknown"])
def test_no_shortcut_where_it_is_not_proven(kinds, change):
    description = json.loads(kinds["unigram" if change == "first" else "bpe"].backend.to_str())
    if change == "dropout":
        description["model"]["dropout"] = 0.1
    elif change == "added":
        description["added_tokens"].append(
            {**description["added_tokens"][0], "id": 400, "content": "so on", "special": False}
        )
    elif change == "regex":
        description["pre_tokenizer"]["use_regex"] = False
    elif change == "first":
        description["pre_tokenizer"]["pretokenizers"][1]["prepend_scheme"] = "first"
    elif change == "nfkc":
        description["normalizer"] = {"type": "NFKC"}  # makes spaces of other characters
    else:
        description["pre_tokenizer"] = {"type": "Whitespace"}
    tokenizer = Tokenizer.of(tokenizers.Tokenizer.from_str(json.dumps(description)), change)
    assert tokenizer._memory is None
    assert len(tokenizer.encode_flat(["so on and so on"] * 100)[1]) == 101


def test_words_begin_where_white_space_ends(kinds, shared_data):
    """On real text, running pieces that open a word are as many as the words between spaces, text
    by text.
    """
    lines = (shared_data / "wikitext-2/valid.txt").read_text(encoding="utf-8").split("\n")
    lines = [line for line in (" ".join(line.split()) for line in lines) if line][:400]
    wanted = [len(line.split()) for line in lines]
    uncased = load(str(shared_data / "vocab/bert_base_uncased_vocab.txt"))
    for tokenizer in (
        load(str(shared_data / "vocab/gpt2_bpe_encoder.json")),
        kinds["bpe"],
        kinds["unigram"],
    ):
        ids, offsets = tokenizer.encode_flat(lines, np.ones(len(lines), np.bool_))
        starts = np.concatenate([[0], np.cumsum(tokenizer.word_start[ids])])
        assert (starts[offsets[1:]] - starts[offsets[:-1]]).tolist() == wanted
    ids, offsets = uncased.encode_flat(lines)  # BERT's words: those of its pre-tokenizer
    starts = np.concatenate([[0], np.cumsum(uncased.word_start[ids])])
    splitter, normalizer = uncased.backend.pre_tokenizer, uncased.backend.normalizer
    words = [len(splitter.pre_tokenize_str(normalizer.normalize_str(line))) for line in lines]
    assert (starts[offsets[1:]] - starts[offsets[:-1]]).tolist() == words


def test_word_starts_by_piece(kinds):
    tokenizer = kinds["bpe"]
    vocab = tokenizer.backend.get_vocab()
    for piece, opens in {
        "Ġ": True,
        "Ċ": True,
        "ĉ": True,
        "a": False,
        ",": False,
        "<s>": True,
        "<mask>": True,
    }.items():
        assert tokenizer.word_start[vocab[piece]] == opens, piece
    assert decode_byte_piece("ĠcafÃ©") == " café"
    unmarked = tokenizers.Tokenizer(
        models.WordLevel(
            {
                name: i
                for i, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "市"])
            }
        )
    )
    assert Tokenizer.of(unmarked, "words").word_start.all()


@pytest.mark.parametrize("language", ["zh", "ja", "th"])
@pytest.mark.parametrize("train", [train_bpe, train_unigram])
def test_letters_of_scripts_without_spaces_start_words(train, language):
    text = TEXTS[language]
    backend = train(
        lambda: iter([text] * 9), VocabConfig(), size=600, lowercase=False, strip_accents=False
    )
    tokenizer = Tokenizer.of(backend, language)
    encoded = backend.encode(text, add_special_tokens=False)
    pieces = [text[first:last] for first, last in encoded.offsets]
    starts = tokenizer.word_start[encoded.ids].tolist()
    expected = [piece[0].isspace() or piece[0].isalpha() for piece in pieces]
    assert starts[1:] == expected[1:]
    assert any(expected[1:])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("bpe", "RobertaTokenizer"),
        ("unigram", "AlbertTokenizer"),
        ("composed", "TokenizersBackend"),
        ("prefixed", "TokenizersBackend"),  # its two switches for a first space differ
    ],
)
def test_transformers_opens_what_is_saved(kinds, tmp_path, kind, name):
    transformers = pytest.importorskip("transformers")
    tokenizer = kinds[kind]
    tokenizer.save(str(tmp_path))
    assert load(str(tmp_path)).fingerprint == tokenizer.fingerprint
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert type(theirs).__name__ == name
    plain = [text for text in [*AWKWARD, *BLANKS, *MARKS, *TRAINING[-1:]] if "[" not in text]
    assert theirs(plain, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch(plain)
    pair, ours = theirs("the code", "it's"), tokenizer.backend.encode("the code", "it's")
    assert pair["input_ids"] == ours.ids
    masked = f"the {theirs.mask_token} stops"
    assert theirs(masked)["input_ids"] == tokenizer.backend.encode(masked).ids
    assert (theirs.mask_token_id, theirs.pad_token_id, len(theirs)) == (
        tokenizer.special.mask,
        tokenizer.special.pad,
        tokenizer.vocab_size,
    )
    if kind == "bpe":
        assert tokenizer.special.mask == tokenizer.vocab_size - 1
        assert (
            "Ġ" not in tokenizer.backend.encode(masked).tokens[:-2]
        )  # the mask takes the space before it
        assert pair["input_ids"].count(tokenizer.special.sep) == 3


def test_a_sentencepiece_model_is_read_as_transformers_reads_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    import sentencepiece

    path = trained_spiece(tmp_path)
    tokenizer = load(path)
    original = sentencepiece.SentencePieceProcessor(model_file=path)
    assert [tokenizer.backend.id_to_token(number) for number in range(len(original))] == [
        original.id_to_piece(number) for number in range(len(original))
    ]
    sentences = [text.lower() for _, document in made_documents(5) for text in document] + [
        "(½ ① ﬁn)"
    ]
    assert tokenizer.encode_batch(sentences) == [original.encode(text) for text in sentences]
    tokenizer.save(str(tmp_path / "saved"))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    assert type(theirs).__name__ == "AlbertTokenizer"
    assert theirs(sentences, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch(
        sentences
    )
    assert (
        load(str(tmp_path)).fingerprint == tokenizer.fingerprint
    )  # the directory, by its spiece.model
    assert not load(path, lowercase=False).lowercase
    (tmp_path / "tokenizer_config.json").write_text(
        '{"do_lower_case": false, "keep_accents": true}'
    )
    assert not load(str(tmp_path)).lowercase


def test_decoding(kinds):
    for kind in ("bpe", "unigram"):
        tokenizer = kinds[kind]
        assert tokenizer.decode(tokenizer.encode_batch(["the code stops."])[0]) == "the code stops."
    assert isinstance(kinds["bpe"].backend.decoder, decoders.ByteLevel)
