"""The recipes: the papers' values, an example of each that one can read, and every kind of
tokenizer.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pyarrow as pa
import pytest

from cloze.labs.retrieval.salient import mark_tokens
from cloze.pipeline.dataset import schema
from cloze.pipeline.dataset.build import BuildRows
from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.masking.candidates import TokenProperties
from cloze.pipeline.dataset.masking.draw import Masks, sample_masks
from cloze.pipeline.dataset.pairings.registry import PAIRINGS
from cloze.pipeline.dataset.pairings.segments import TokenizedDocuments, tokenize
from cloze.pipeline.dataset.recipes import RECIPES
from cloze.pipeline.dataset.rows import RowBlock, assemble, part_schema
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.pipeline.corpus.corpora import write_corpus

# Two documents: of three sentences, and of two. `unhappy` is a word of two pieces.
STORY = [
    ["the cat sat on the mat .", "it was unhappy .", "then it slept ."],
    ["a dog ran home .", "it ate all the cake ."],
]
SPANS = {0: [(4, 7), (19, 22)], 1: [(7, 14)], 4: [(11, 19)]}  # cat, mat, unhappy, the cake
PIECES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] . a all ate cake cat dog home it mat on ran sat slept the then "
    "un ##happy was"
).split()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("small") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in PIECES))
    return load(str(path))


def examples(
    text: list[list[str]], tokenizer: Tokenizer, config: ExampleConfig
) -> tuple[TokenizedDocuments, RowBlock, Masks]:
    """Documents, rows and masks, as the dataset stage makes them of one corpus shard."""
    counts = np.array([len(document) for document in text])
    keys = np.arange(11, 11 + 11 * len(text), 11, dtype=np.uint64)
    ids = schema.id_dtype(tokenizer.vocab_size)
    sentences = [sentence for document in text for sentence in document]
    mark = partial(mark_tokens, spans=SPANS) if config.masking == "salient" else None
    documents = tokenize(keys, sentences, counts, tokenizer, ids, mark)
    segments = resolve_name(PAIRINGS[config.pairing].function)(documents, config)
    block = assemble(documents, segments, config.seed, tokenizer.special)
    table = TokenProperties.of(
        tokenizer, np.bincount(documents.tokens, minlength=tokenizer.vocab_size)
    )
    return (
        documents,
        block,
        sample_masks(
            block.with_keys(config.seed), config.mask_config(), table, range(config.mask_copies)
        ),
    )


def shown(block: RowBlock, masks: Masks, copies: int, tokenizer: Tokenizer) -> list[str]:
    """Each row of the first copy as text: (what was there→) before what the model sees instead, |
    where segment B begins.
    """
    lines = []
    for row in range(len(block)):
        ids = block.ids.values[block.ids.offsets[row] : block.ids.offsets[row + 1]]
        pieces = [str(tokenizer.backend.id_to_token(int(token))) for token in ids]
        part = slice(masks.offsets[row * copies], masks.offsets[row * copies + 1])
        for position, seen in zip(
            masks.positions[part].tolist(), masks.input_ids[part].tolist(), strict=True
        ):
            pieces[position] = f"({pieces[position]}→{tokenizer.backend.id_to_token(seen)})"
        pieces[block.segment_start[row] : block.segment_start[row]] = (
            "|" if block.segment_start[row] < len(ids) else []
        )
        label = {0: "0 ", 1: "1 "}.get(int(block.pair_label[row]), "")
        starts = (
            ""
            if "boundaries" not in block.columns
            else f" {block.columns['boundaries'].take(np.array([row])).values.tolist()}"
        )
        lines.append(label + " ".join(pieces) + starts)
    return sorted(lines)


BY_HAND = {
    "bert": (
        14,
        [
            "0 [CLS] cat (sat→[MASK]) on the mat . [SEP] | it (was→[MASK]) un ##happy . [SEP]",
            "1 [CLS] (a→[MASK]) dog ran home (.→[MASK]) [SEP] | the cat sat on the mat [SEP]",
            "1 [CLS] it ate all the cake . [SEP] | the cat (sat→[MASK]) on (the→[MASK]) [SEP]",
            "1 [CLS] then it slept . [SEP] | it ate (all→[MASK]) (the→[MASK]) cake . [SEP]",
        ],
    ),
    "bert-wwm": (
        20,
        [
            "0 [CLS] (the→[MASK]) (cat→[MASK]) sat on the mat . it was un ##happy . [SEP] | "
            "(then→[MASK]) it slept . [SEP]",
            "1 [CLS] (it→it) ate all the cake (.→[MASK]) [SEP] | the cat sat on the mat . "
            "(it→[MASK]) was un ##happy [SEP]",
            "1 [CLS] a dog ran home . [SEP] | (the→the) (cat→[MASK]) sat on (the→[MASK]) mat . it "
            "was un ##happy . [SEP]",
        ],
    ),
    "roberta": (
        24,
        [
            "[CLS] it ate all the cake (.→[MASK]) [SEP]",
            "[CLS] the (cat→[MASK]) sat (on→[MASK]) the mat . it was un ##happy . then it "
            "(slept→[MASK]) . [SEP] a "
            "dog ran home . [SEP]",
        ],
    ),
    "roberta-doc": (
        24,
        [
            "[CLS] (a→[MASK]) dog ran home (.→[MASK]) it ate all the cake . [SEP]",
            "[CLS] the (cat→[MASK]) (sat→sat) on the mat . it was un (##happy→[MASK]) . then it "
            "slept . [SEP]",
        ],
    ),
    "albert": (
        16,
        [
            "0 [CLS] (sat→[MASK]) on the mat . it was un ##happy [SEP] | then (it→[MASK]) slept . "
            "[SEP]",
            "1 [CLS] it ate all the (cake→[MASK]) . [SEP] | (a→[MASK]) dog ran home . [SEP]",
        ],
    ),
    "spanbert": (
        20,
        [
            "[CLS] a dog ran home (.→[MASK]) (it→[MASK]) ate all the cake . [SEP]",
            "[CLS] the cat sat on the mat . it was un ##happy . (then→[MASK]) (it→[MASK]) "
            "(slept→[MASK]) . [SEP]",
        ],
    ),
    "electra": (
        16,
        [
            "[CLS] (a→[MASK]) dog ran home (.→[MASK]) it ate all the cake . [SEP]",
            "[CLS] the (cat→[MASK]) sat on the mat . [SEP] | it was (un→[MASK]) ##happy . then "
            "[SEP]",
        ],
    ),
    "lm": (
        24,
        [
            "[CLS] it ate all the cake . [SEP]",
            "[CLS] the cat sat on the mat . it was un ##happy . then it slept . [SEP] a dog ran "
            "home . [SEP]",
        ],
    ),
    "packed": (
        32,
        [
            "[CLS] the (cat→[MASK]) sat (on→[MASK]) the (mat→[MASK]) . it (was→[MASK]) un "
            "(##happy→[MASK]) . then "
            "(it→[MASK]) (slept→[MASK]) (.→[MASK]) [SEP] [CLS] a dog ran home . it ate "
            "(all→[MASK]) the cake . [SEP] [0, 18]",
        ],
    ),
    "realm": (
        24,
        [
            "[CLS] a dog ran home . it ate all (the→[MASK]) (cake→[MASK]) . [SEP]",
            "[CLS] the cat sat on the mat . it was (un→[MASK]) (##happy→[MASK]) . then it slept . "
            "[SEP]",
        ],
    ),
}


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_by_hand(small, recipe):
    """Rows of each recipe, to be read. If one changes on purpose, the dataset stage's version is
    raised.
    """
    length, expected = BY_HAND[recipe]
    config = ExampleConfig(recipe=recipe, length=length, seed=3, short_seq_prob=0, mask_copies=1)
    _, block, masks = examples(STORY, small, config)
    assert shown(block, masks, 1, small) == expected


def test_sentence_pairs_by_hand(small):
    """Each row has two sentences; a document's last one, if it is left over, gets a random one."""
    config = ExampleConfig(pairing="sentence-pair", length=24, seed=5, mask_copies=1)
    _, block, masks = examples(STORY, small, config.model_copy(update={"masking": "none"}))
    assert shown(block, masks, 1, small) == [
        "0 [CLS] the cat sat on the mat . [SEP] | it was un ##happy . [SEP]",
        "1 [CLS] a dog ran home . [SEP] | it was un ##happy . [SEP]",
        "1 [CLS] it ate all the cake . [SEP] | the cat sat on the mat . [SEP]",
        "1 [CLS] then it slept . [SEP] | a dog ran home . [SEP]",
    ]


# recipe: pairing, rule, rate, budget, [MASK], random, from, short, drawings, copies, cap at 128, at 512
VALUES = {
    "bert": ("nsp", "token", 0.15, "bert", 0.8, 0.1, "vocabulary", 0.1, 5, 2, 20, 78),
    "bert-wwm": ("nsp", "whole-word", 0.15, "bert", 0.8, 0.1, "vocabulary", 0.1, 5, 2, 20, 78),
    "roberta": ("full", "token", 0.15, "probabilistic", 0.8, 0.1, "pieces", 0.0, 1, 10, 128, 512),
    "roberta-doc": (
        "document",
        "token",
        0.15,
        "probabilistic",
        0.8,
        0.1,
        "pieces",
        0.0,
        1,
        10,
        128,
        512,
    ),
    "albert": ("sop", "n-gram", 0.15, "bert", 0.8, 0.1, "vocabulary", 0.1, 10, 4, 20, 78),
    "spanbert": ("document", "span", 0.15, "ceil", 0.8, 0.1, "corpus", 0.0, 1, 10, 128, 512),
    "electra": ("electra", "token", 0.15, "round", 0.85, 0.0, "vocabulary", 0.05, 1, 10, 19, 79),
    "lm": ("full", "none", 0.15, "bert", 0.8, 0.1, "vocabulary", 0.0, 1, 1, 20, 78),
    "packed": ("packed", "token", 0.3, "bert", 0.8, 0.1, "pieces", 0.0, 1, 10, 39, 155),
    "realm": ("document", "salient", 0.15, "bert", 1.0, 0.0, "vocabulary", 0.0, 1, 10, 20, 78),
}
NAMES = (
    "pairing masking mask_rate mask_rounding mask_share random_share random_from short_seq_prob"
    " drawings mask_copies"
).split()


def test_the_papers_values():
    assert set(VALUES) == set(RECIPES)
    for recipe, values in VALUES.items():
        short, long = (ExampleConfig(recipe=recipe, length=length) for length in (128, 512))
        assert tuple(getattr(short, name) for name in NAMES) == values[:-2], recipe
        assert (short.max_predictions, long.max_predictions) == values[-2:], recipe
        assert set(RECIPES[recipe]()) <= set(NAMES)
        assert (
            short.max_ngram,
            short.span_p,
            short.max_span,
            short.swap_prob,
            short.single_segment_prob,
        ) == (
            3,
            0.2,
            10,
            0.5,
            0.1,
        )
        assert "al. 20" in RECIPES[recipe].__doc__ or "google-research" in RECIPES[recipe].__doc__
        assert not short.warnings()
        assert not long.warnings()


def test_nothing_of_a_part_disappears(small, tmp_path):
    """`BuildRows` says of every piece where it is, for every recipe, and its file holds the rows
    that it counts.
    """
    corpus = Path(
        write_corpus(
            tmp_path / "corpus",
            [(str(n), text) for n, text in enumerate(STORY * 6)],
            heldout=["3", "7"],
        )
    )
    small.save(str(tmp_path / "tokenizer"))
    fingerprint = load(str(tmp_path / "tokenizer")).fingerprint
    for recipe in RECIPES:
        config = ExampleConfig(recipe=recipe, length=24, max_predictions=2)
        runs, keys = (
            Exchange(directory=str(tmp_path / recipe / name), runs=1, places=places)
            for name, places in (("rows", 16), ("documents", 8))
        )
        make = BuildRows(
            directory=str(tmp_path / recipe),
            runs=runs,
            keys=keys,
            buckets={"train": 8, "heldout": 8},
            tokenizer=str(tmp_path / "tokenizer"),
            tokenizer_fingerprint=fingerprint,
            config=config,
        )
        result = make({"number": 0, "paths": list(map(str, corpus.glob("corpus-*.arrow")))})
        edges = runs.connect_block(0)["rows"]
        for split, documents, first in (("train", 10, 0), ("heldout", 2, 8)):
            counters = result[split]["counters"]
            assert counters["read/documents"] == documents
            assert (
                counters["tokens/read"] == counters["tokens/in_rows"] + counters["tokens/truncated"]
            )
            assert edges[first + 8] - edges[first] == result[split]["rows"]
            lists = ["boundaries"] if recipe == "packed" else []
            rows_schema = part_schema(small.vocab_size, lists)
            with runs.read(rows_schema, first, first + 8) as read:
                batches = [batch for at in range(first, first + 8) for batch in read.batches(at)]
                batch = pa.concat_batches(batches)
            block = RowBlock.from_arrow(batch)
            assert (np.diff(np.concatenate([[0], block.rank >> np.uint64(61)])) >= 0).all()
            assert len(block) == result[split]["rows"] > 0
            in_rows = counters["tokens/in_rows"] + counters["tokens/again"]
            heads = counters["rows/sequences"] if recipe == "packed" else len(block)
            assert len(block.ids.values) == in_rows + heads + counters["rows/sequences"]
            assert ("boundaries" in block.columns) == (recipe == "packed")
            half = RowBlock.from_arrow(batch.slice(1))
            np.testing.assert_array_equal(half.ids.values, block.ids.values[block.ids.offsets[1] :])
        capped = result["train"]["counters"]["masks/capped_rows"]
        assert (capped > 0) == (recipe not in ("lm", "realm"))


def test_schema_has_boundaries_only_where_rows_are_packed(small):
    values = {
        "recipe": "packed",
        "length": 64,
        "copies": 1,
        "vocab_size": small.vocab_size,
        "special": small.special,
        "pair_task": None,
        "seed": 0,
        "tokenizer": "x",
    }
    masks = ExampleConfig(recipe="packed").mask_config().as_dict()
    info = schema.DatasetInfo(**values, packed=True, masks=masks)
    found = schema.dataset_schema(info, np.dtype(np.uint16))
    assert found.names[-1] == "boundaries"
    assert found.field("boundaries").type == pa.list_(pa.uint16())
    assert schema.DatasetInfo.from_schema(found, "shard") == info
    plain = schema.DatasetInfo(**values)
    assert "boundaries" not in schema.dataset_schema(plain, np.dtype(np.uint16)).names
