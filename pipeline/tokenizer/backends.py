"""Tokenizer backends of the families, equal to those of transformers' own classes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from cloze.pipeline.tokenizer.sentencepiece_model import SentencePieceModel
from cloze.pipeline.tokenizer.special import METASPACE, SENTINEL, special_names

# longer words are [UNK]: google-research/bert, tokenization.py has 200, transformers 100
MAX_WORD_CHARACTERS = 100


def bert_backend(
    vocab: Mapping[str, int], lowercase: bool, strip_accents: bool | None = None
) -> tokenizers.Tokenizer:
    """Build a WordPiece tokenizer as BERT's: `[CLS] A [SEP] B [SEP]`.

    Args:
        vocab: tokens to ids.
        strip_accents: remove accents; None: if `lowercase`.
    """
    model = models.WordPiece(
        dict(vocab),
        unk_token=special_names(vocab)["unk"],
        continuing_subword_prefix="##",
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
    )
    backend = _split_as_bert(model, vocab, lowercase, strip_accents)
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return backend


def word_backend(
    words: Sequence[str], lowercase: bool, strip_accents: bool | None = None
) -> tokenizers.Tokenizer:
    """Build a tokenizer of whole words, by id, split as BERT's; arguments as for `bert_backend`."""
    vocab = {word: number for number, word in enumerate(words)}
    model = models.WordLevel(vocab, unk_token=special_names(vocab)["unk"])
    return _split_as_bert(model, vocab, lowercase, strip_accents)


def _split_as_bert(
    model: models.Model, vocab: Mapping[str, int], lowercase: bool, strip_accents: bool | None
) -> tokenizers.Tokenizer:
    """Build a tokenizer with BERT's normalizer, pre-tokenizer and special tokens."""
    names = special_names(vocab)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens([name for name in names.values() if name in vocab])
    frame_as_bert(backend, names)
    return backend


def roberta_backend(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    lowercase: bool = False,
    add_prefix_space: bool = False,
) -> tokenizers.Tokenizer:
    """Build a byte-level BPE as RoBERTa's: `<s> A </s></s> B </s>`, without segment ids.

    The pre-tokenizer is GPT-2's.

    Args:
        vocab: tokens, in GPT-2's byte alphabet, to ids.
        merges: pairs of tokens in the order of learning.
        lowercase: lowercase the text; RoBERTa does not.
        add_prefix_space: put a space before every text that has none; RoBERTa does not.
    """
    names = special_names(vocab)
    model = models.BPE(
        dict(vocab),
        list(merges),
        continuing_subword_prefix="",
        end_of_word_suffix="",
        fuse_unk=False,
        byte_fallback=False,
    )
    backend = tokenizers.Tokenizer(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=add_prefix_space, use_regex=True
    )
    backend.decoder = decoders.ByteLevel()
    _add_special_tokens(backend, names)
    if names["cls"] in vocab and names["sep"] in vocab and names["cls"] != names["sep"]:
        backend.post_processor = processors.RobertaProcessing(
            (names["sep"], vocab[names["sep"]]),
            (names["cls"], vocab[names["cls"]]),
            True,
            add_prefix_space,
        )
    return backend


def albert_backend(
    pieces: Sequence[tuple[str, float]],
    unk_id: int,
    lowercase: bool = True,
    strip_accents: bool = True,
    charsmap: bytes | None = None,
) -> tokenizers.Tokenizer:
    """Build a Unigram tokenizer as ALBERT's: words begin with `▁`, `[CLS] A [SEP] B [SEP]`.

    Args:
        pieces: tokens with their log-probabilities; the index is the id.
        unk_id: index of <unk>.
        strip_accents: decompose the text (NFKD) and remove accents; opposite of transformers'
            `keep_accents`.
        charsmap: normalization of a SentencePiece model, applied last.
    """
    vocab = {piece: number for number, (piece, _) in enumerate(pieces)}
    names = special_names(vocab)
    backend = tokenizers.Tokenizer(models.Unigram(list(pieces), unk_id, False))
    backend.normalizer = albert_normalizer(lowercase, strip_accents, charsmap)
    _split_at_spaces(backend)
    _add_special_tokens(backend, names)
    frame_as_bert(backend, names)
    return backend


def t5_backend(
    pieces: Sequence[tuple[str, float]], unk_id: int, charsmap: bytes | None, sentinels: int
) -> tokenizers.Tokenizer:
    """Build T5's Unigram tokenizer: `A </s>`; the last sentinel follows the model's tokens.

    Args:
        pieces, unk_id, charsmap: as for `albert_backend`.
        sentinels: number of tokens <extra_id_0> …; the first has the highest id.
    """
    extra = [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
    vocab = [*pieces, *((token, 0.0) for token in extra)]
    backend = tokenizers.Tokenizer(models.Unigram(vocab, unk_id, False))
    if charsmap:
        backend.normalizer = normalizers.Precompiled(charsmap)
    _split_at_spaces(backend)
    backend.add_special_tokens(["<pad>", "</s>", "<unk>", *reversed(extra)])
    return backend


def named_as_t5(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Give mT5's sentinels, the pieces `▁<extra_id_0>` …, T5's names, and make them special."""
    if backend.token_to_id(METASPACE + SENTINEL) is None or backend.token_to_id(SENTINEL):
        return backend
    prefix = SENTINEL.removesuffix("0>")
    backend = tokenizers.Tokenizer.from_str(backend.to_str().replace(METASPACE + prefix, prefix))
    backend.add_special_tokens(sorted(n for n in backend.get_vocab() if n.startswith(prefix)))
    return backend


# model type -> fairseq's first ids, which replace those of the first SentencePiece tokens (their
# number); transformers, convert_slow_tokenizer.py
FAIRSEQ: dict[str, tuple[tuple[tuple[str, float], ...], int]] = {
    "xlm-roberta": ((("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)), 3),
    "camembert": (
        (
            *(("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0)),
            ("<unk>NOTUSED", -100.0),
        ),
        1,
    ),
}


def fairseq_backend(model: SentencePieceModel, model_type: str) -> tokenizers.Tokenizer:
    """Build XLM-RoBERTa's or CamemBERT's Unigram tokenizer: `<s> A </s></s> B </s>`.

    The ids are those of fairseq's dictionary, whose last token is the mask.
    """
    first, replaced = FAIRSEQ[model_type]
    pieces = [*first, *model.pieces[replaced:], ("<mask>", 0.0)]
    vocab = {piece: number for number, (piece, _) in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.Unigram(pieces, vocab["<unk>"], False))
    if model.charsmap:
        backend.normalizer = normalizers.Precompiled(model.charsmap)
    _split_at_spaces(backend)
    _add_special_tokens(backend, special_names(vocab))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, vocab[name]) for name in ("<s>", "</s>")],
    )
    return backend


def _split_at_spaces(backend: tokenizers.Tokenizer) -> None:
    """Make words begin with `▁`."""
    metaspace = pre_tokenizers.Metaspace(replacement=METASPACE, prepend_scheme="always")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    backend.decoder = decoders.Metaspace(replacement=METASPACE, prepend_scheme="always")


def _add_special_tokens(backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> None:
    """Register the special tokens of the vocabulary.

    The mask includes the space before it, as the masked token would (transformers,
    RobertaTokenizer).
    """
    backend.add_special_tokens(
        [
            AddedToken(name, lstrip=role == "mask", normalized=False, special=True)
            for role, name in names.items()
            if backend.token_to_id(name) is not None
        ]
    )


def albert_normalizer(
    lowercase: bool, strip_accents: bool, charsmap: bytes | None = None
) -> normalizers.Normalizer:
    """Build the normalizer: quotes, accents and case, then the model's own map.

    Source: google-research/albert, tokenization.py, preprocess_text.
    """
    steps: list[normalizers.Normalizer] = [normalizers.Replace(mark, '"') for mark in ("``", "''")]
    if strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    return normalizers.Sequence(steps)


# Holds a space, which no piece of a text has, and a code point that is no character.
HIDDEN = "\ufdd0 "


def literal_backend(
    description: Mapping[str, Any], special: Collection[int], names: Collection[str] = ()
) -> tokenizers.Tokenizer:
    """Build the tokenizer of a `tokenizer.json` for which special tokens in text are plain text.

    The library's switch (`encode_special_tokens`) stops the search for them in the text, but not
    the model: in Unigram they are pieces, and a BPE or a list of words can have them, too.
    SentencePiece never makes its control symbols from text. So their names become ones that no text
    has; ids stay.

    Args:
        description: the parsed `tokenizer.json`.
        special: ids of tokens that are special whatever the file says of them.
        names: special tokens that text may name.
    """
    model = dict(description["model"])
    vocab = model["vocab"]
    pieces = (
        enumerate(piece for piece, _ in vocab)
        if isinstance(vocab, list)
        else ((number, piece) for piece, number in vocab.items())
    )
    hidden = {piece for number, piece in pieces if number in special}
    for token in description["added_tokens"]:
        if token["special"] or token["id"] in special:
            hidden.add(token["content"])
    hidden -= set(names)

    def shown(piece: str) -> str:
        return HIDDEN + piece if piece in hidden else piece

    if isinstance(vocab, list):
        model["vocab"] = [[shown(piece), score] for piece, score in vocab]
    else:
        model["vocab"] = {shown(piece): number for piece, number in vocab.items()}
    if model.get("unk_token"):
        model["unk_token"] = shown(model["unk_token"])
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) not in hidden]
    added = [
        # The switch spares tokens that are not special, so those that may be named are none here.
        {**token, "content": shown(token["content"]), "special": token["content"] in hidden}
        for token in description["added_tokens"]
    ]
    backend = tokenizers.Tokenizer.from_str(
        json.dumps({**description, "model": model, "added_tokens": added, "post_processor": None})
    )
    backend.encode_special_tokens = True
    return backend


# The special tokens around one text and around a pair.


@dataclass(frozen=True, slots=True)
class PairFrame:
    """The special tokens of `[CLS] A <separator> B [SEP]`."""

    separator: tuple[int, ...]  # ids between the two texts
    typed: bool  # the tokens of B have type 1


def pair_frame(backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> PairFrame:
    """Return the pair frame of the post-processor of `backend`.

    BERT's post-processor replaces one that does not write `[CLS] A [SEP]` and `[CLS] A … B [SEP]`.
    So the saved tokenizer frames texts as in the model's training. T5 writes `A </s>` and `A </s> B
    </s>`, GPT-2's own tokenizer nothing.

    Args:
        names: special tokens by role.
    """
    vocab = backend.get_vocab()
    cls, sep, mask = (vocab[names[role]] for role in ("cls", "sep", "mask"))
    if names["sep"] == names["pad"]:  # GPT-2: its tokenizer writes no special tokens
        return PairFrame((sep,), False)
    if names["cls"] == names["pad"]:
        end = names["sep"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, sep)]
        )
        return PairFrame((sep,), False)
    text = backend.encode(names["mask"], add_special_tokens=False)
    pair = backend.post_process(text, text)
    special_ids = [token_id for token_id in pair.ids if token_id != mask]
    is_single_framed = backend.post_process(text).ids == [cls, mask, sep]
    if not is_single_framed or pair.ids != [cls, mask, *special_ids[1:-1], mask, sep]:
        frame_as_bert(backend, names)
        return PairFrame((sep,), True)
    return PairFrame(tuple(special_ids[1:-1]), pair.type_ids[-2] == 1)


def frame_as_bert(backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> None:
    """Make `backend` write `[CLS] A [SEP] B [SEP]`, if its vocabulary has both tokens."""
    cls, sep = names["cls"], names["sep"]
    numbers = backend.token_to_id(cls), backend.token_to_id(sep)
    if None not in numbers:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=list(zip((cls, sep), numbers, strict=True)),
        )
