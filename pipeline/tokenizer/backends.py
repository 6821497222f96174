"""The families' tokenizers, put together from their vocabularies: as transformers' own classes build them.

So a saved one opens with its family's class (`BertTokenizer`, `RobertaTokenizer`, `AlbertTokenizer`) and gives the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from pipeline.tokenizer.special import METASPACE, special_names

MAX_WORD_CHARACTERS = 100  # a longer word is [UNK]: google-research/bert's tokenization.py says 200, transformers 100


def bert_backend(vocab: Mapping[str, int], lowercase: bool, strip_accents: bool | None = None) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer as BERT's: `[CLS] A [SEP] B [SEP]`.

    Args:
        vocab: pieces to ids.
        lowercase: lowercase the text.
        strip_accents: remove accents; None: where case is removed.
    """
    names = special_names(vocab)
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            dict(vocab), unk_token=names["unk"], continuing_subword_prefix="##", max_input_chars_per_word=MAX_WORD_CHARACTERS
        )
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    backend.add_special_tokens([name for name in names.values() if name in vocab])
    _template(backend, vocab, names)
    return backend


def roberta_backend(
    vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], lowercase: bool = False, add_prefix_space: bool = False
) -> tokenizers.Tokenizer:
    """A byte-level BPE as RoBERTa's: GPT-2's pre-tokenizer, `<s> A </s></s> B </s>`, no segments.

    Args:
        vocab: pieces, in GPT-2's byte alphabet, to ids.
        merges: pairs of pieces, the first learned first.
        lowercase: lowercase the text; RoBERTa does not.
        add_prefix_space: put a space before every text that has none; RoBERTa does not.
    """
    names = special_names(vocab)
    model = models.BPE(
        dict(vocab), list(merges), continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False, byte_fallback=False
    )
    backend = tokenizers.Tokenizer(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    # The mask takes the space before it, since the piece that stands there would have it: transformers, RobertaTokenizer.
    backend.add_special_tokens(
        [
            AddedToken(name, lstrip=role == "mask", normalized=False, special=True)
            for role, name in names.items()
            if name in vocab
        ]
    )
    if names["cls"] in vocab and names["sep"] in vocab:
        backend.post_processor = processors.RobertaProcessing(
            (names["sep"], vocab[names["sep"]]), (names["cls"], vocab[names["cls"]]), True, add_prefix_space
        )
    return backend


def albert_backend(
    pieces: Sequence[tuple[str, float]],
    unk_id: int,
    lowercase: bool = True,
    strip_accents: bool = True,
    charsmap: bytes | None = None,
) -> tokenizers.Tokenizer:
    """A Unigram tokenizer as ALBERT's: words begin with `▁`, `[CLS] A [SEP] B [SEP]`.

    Args:
        pieces: with their log-probabilities; the id is the place in the list.
        unk_id: the place of <unk>.
        lowercase: lowercase the text.
        strip_accents: decompose it (NFKD) and remove accents: transformers' `keep_accents` turned round.
        charsmap: a SentencePiece model's own normalization, run last.
    """
    vocab = {piece: number for number, (piece, _) in enumerate(pieces)}
    names = special_names(vocab)
    backend = tokenizers.Tokenizer(models.Unigram(list(pieces), unk_id, False))
    backend.normalizer = albert_normalizer(lowercase, strip_accents, charsmap)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=METASPACE, prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(replacement=METASPACE, prepend_scheme="always")
    backend.add_special_tokens(
        [
            AddedToken(name, lstrip=role == "mask", normalized=False, special=True)
            for role, name in names.items()
            if name in vocab
        ]
    )
    _template(backend, vocab, names)
    return backend


def albert_normalizer(lowercase: bool, strip_accents: bool, charsmap: bytes | None = None) -> normalizers.Normalizer:
    """google-research/albert, tokenization.py, preprocess_text: quotes, accents, case; then the model's own map."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    return normalizers.Sequence(steps)


def _template(backend: tokenizers.Tokenizer, vocab: Mapping[str, int], names: Mapping[str, str]) -> None:
    cls, sep = names["cls"], names["sep"]
    if cls in vocab and sep in vocab:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
        )
