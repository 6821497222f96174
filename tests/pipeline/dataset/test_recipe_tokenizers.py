"""Every recipe takes every kind of tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers

from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.masking.candidates import MaskCandidates, TokenProperties
from cloze.pipeline.dataset.recipes import RECIPES
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.pipeline.corpus.corpora import made_documents
from tests.pipeline.dataset.test_recipes import examples


def byte_level(sentences: list[str]) -> Tokenizer:
    """A tiny byte-level BPE with RoBERTa's special tokens."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sentences, trainer)
    return Tokenizer.of(backend, "byte-level")


def unigram(sentences: list[str]) -> Tokenizer:
    """A tiny Unigram with ALBERT's special tokens."""
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(sentences, trainer)
    return Tokenizer.of(backend, "unigram")


@pytest.mark.parametrize("make", [byte_level, unigram])
@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_takes_every_tokenizer(make, recipe):
    text = [sentences for _, sentences in made_documents(8, 12)]
    tokenizer = make([sentence for sentences in text for sentence in sentences])
    special = tokenizer.special
    config = ExampleConfig(recipe=recipe, length=64, mask_copies=2)
    documents, block, masks = examples(text, tokenizer, config)
    assert block.lengths.max() <= 64
    starts = block.ids.values[block.ids.offsets[:-1]]
    assert (starts == special.cls).all()
    assert (block.ids.values[block.ids.offsets[1:] - 1] == special.sep).all()
    assert not np.isin(documents.tokens, special.ids).any()
    row = np.repeat(np.arange(len(block) * 2) // 2, np.diff(masks.offsets))
    chosen = block.ids.offsets[:-1][row] + masks.positions
    assert not np.isin(block.ids.values[chosen], special.ids).any()
    if config.masking in ("whole-word", "n-gram", "span"):
        table = TokenProperties.of(tokenizer)
        candidates = MaskCandidates.of(block.with_keys(0), table)
        opens = np.append(candidates.opens_word(), True)
        place = np.searchsorted(candidates.index, chosen)
        same = np.append(
            np.diff(np.repeat(np.arange(len(block) * 2), np.diff(masks.offsets))) == 0, False
        )
        ends = ~np.append(same[:-1] & (np.diff(place) == 1), False)
        assert opens[place + 1][ends].all()  # whatever is chosen last of a run ends a word


def test_a_sentence_behind_another_begins_with_a_space():
    """To a byte-level BPE, which has other pieces there, and could else not tell where its first
    word begins.
    """
    tokenizer = byte_level(["yes yes no no, yes", "no yes"])
    documents, block, _ = examples(
        [["yes no", "yes no"], ["no"]], tokenizer, ExampleConfig(recipe="roberta-doc", length=16)
    )
    pieces = [tokenizer.backend.id_to_token(int(token)) for token in documents.tokens]
    assert "".join(pieces) == "yesĠnoĠyesĠnono"
    words = MaskCandidates.of(block.with_keys(0), TokenProperties.of(tokenizer)).opens_word()
    assert words.sum() == 5
