"""Who is dropped as a near duplicate: large buckets, templates, and any order, parts and sizes."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.core.arrow import write_arrow
from cloze.pipeline.corpus.duplicates import search
from cloze.pipeline.corpus.duplicates.partitions import Sizes
from cloze.pipeline.corpus.duplicates.rules import document_texts, find_duplicates
from cloze.pipeline.corpus.duplicates.search import Comparison, SignatureColumns
from cloze.pipeline.corpus.duplicates.unit_plans import read_signatures, write_units
from cloze.pipeline.corpus.files.intermediate import signatures_schema
from cloze.pipeline.corpus.options import DEFAULT
from cloze.pipeline.corpus.signatures import (
    SKETCH_BYTES,
    jaccard,
    margin,
    signature,
    similarity,
)
from tests.pipeline.corpus.duplicates.plans import by_lists, by_one
from tests.pipeline.corpus.duplicates.references import References

LIMIT = 0.6
TEXTS = pa.list_(pa.string())
NAMES = ("bands", "sketch")


MARGIN = margin(LIMIT, SKETCH_BYTES)


class ByEstimate(Comparison):
    """Documents without texts: those near the limit are like each other if the estimate says so."""

    def confirmed(self, left, right):
        return self.above(left, right) >= 0


def searched(table, sketches, texts=None):
    """Return the original of each document, int32 [n], and how many are unconfirmed."""
    kind = ByEstimate if texts is None else Comparison
    compare = kind(lambda at: sketches[at], lambda at: [texts[each] for each in at], LIMIT)
    of = search.verified_duplicates(
        lambda band: table[:, band].copy(), table.shape[1], np.ones(len(table), bool), compare
    )
    return of, compare.unconfirmed


@pytest.mark.parametrize("shared", [(3,), (0, 5, 9)], ids=["one", "three"])
def test_a_value_that_all_documents_share_hides_no_copy(shared):
    """Every second document is a copy; a template gives all of them the same value in a band."""
    original = np.arange(2400) // 2
    table = random_keys.fold_in(1, original[:, None], np.arange(14))
    table[:, shared] = 7
    sketches = random_keys.fold_in(2, original[:, None], np.arange(SKETCH_BYTES)).astype(np.uint8)
    found, _ = searched(table, sketches)
    assert found.tolist() == (2 * original).tolist()


def test_a_chain_of_documents_is_decided_to_its_end():
    """Each document shares a band with the next one alone, and is like every other of them."""
    numbers = np.arange(2500)
    table = random_keys.fold_in(1, numbers[:, None], np.arange(2))
    for number in range(1, numbers.size):
        table[number, number % 2] = table[number - 1, number % 2]
    sketches = np.ones((numbers.size, SKETCH_BYTES), dtype=np.uint8)
    assert searched(table, sketches)[0].tolist() == (numbers - numbers % 2).tolist()


@pytest.mark.parametrize("bucket", ["all", "tens"])
def test_each_document_is_decided_by_the_earlier_kept_ones(bucket):
    """The kept set of the plain rule: each document against the earlier kept ones."""
    draw = np.random.default_rng(3)
    sketches = draw.integers(1, 256, (60, SKETCH_BYTES)).astype(np.uint8)[draw.integers(0, 60, 300)]
    noise = draw.random(sketches.shape) < draw.choice([0.0, 0.1, 0.3], (300, 1))
    sketches = np.where(noise, draw.integers(1, 256, sketches.shape), sketches).astype(np.uint8)
    table = draw.integers(0, 3 if bucket == "all" else 30, (300, 4)).astype(np.uint64)
    expected: list[int] = []
    for number in range(300):
        alike = similarity(sketches[number][None], sketches[expected]) >= LIMIT
        if not (alike & (table[number] == table[expected]).any(axis=1)).any():
            expected.append(number)
    found, _ = searched(table, sketches)
    assert np.flatnonzero(found == np.arange(300)).tolist() == expected
    assert set(found.tolist()) == set(expected)
    assert 60 < len(expected) < 300


@pytest.mark.parametrize("own", [49, 55, 60, 120])
def test_pages_of_one_template_stay_and_their_copies_go(own):
    """Distinct pages (similarity .60, .57, .55, .38) are compared with hundreds of others.

    Every sixth page has an edited copy (similarity .7 and more).
    """
    template = [f"t{number}" for number in range(150)]
    pages = [[f"p{page}x{number}" for number in range(own)] for page in range(900)]
    edited = [["new", "words", *page[: own // 2], "here", *page[own // 2 + 6 :]] for page in pages]
    texts = [" ".join(template + page) for page in (*pages, *edited[::6])]
    assert jaccard(texts[0], texts[1]) < LIMIT
    assert jaccard(texts[0], texts[900]) > 0.7
    found = [signature(text) for text in texts]
    table, sketches = (np.stack([getattr(one, name) for one in found]) for name in NAMES)
    of, unconfirmed = searched(table, sketches, texts)
    assert bool(unconfirmed) == (own < 120)  # hundreds are near the limit
    stay = of == np.arange(len(texts))
    assert stay[:900].all()
    share_a_band = [
        bool((found[6 * number].bands == found[900 + number].bands).any()) for number in range(150)
    ]
    assert (~stay[900:]).tolist() == share_a_band
    assert sum(share_a_band) > 120


def test_copies_of_short_texts_are_found_in_a_large_bucket():
    """Few bins of a sketch's first bytes are filled by 30 words; they must not exclude a pair."""
    pages = [" ".join(f"p{page}x{number}" for number in range(30)) for page in range(150)]
    texts = pages + [page.rsplit(" ", 3)[0] for page in pages]  # similarity .88
    found = [signature(text) for text in texts]
    table, sketches = (np.stack([getattr(one, name) for one in found]) for name in NAMES)
    table[:, 0] = 7
    assert searched(table, sketches, texts)[0].tolist() == [*range(150), *range(150)]


@pytest.mark.parametrize(("words", "changed"), [(60, 3), (400, 12), (3000, 90), (3000, 20)])
def test_the_estimate_is_as_sharp_as_the_margin_says(words, changed):
    """Also for few words, and after a band was chosen because it agrees."""
    errors = []
    for seed in range(60):
        draw = np.random.default_rng(seed)
        first = [f"w{number}" for number in draw.integers(0, 50_000, words)]
        second = list(first)
        for place in draw.choice(words, changed, replace=False):
            second[place] = f"x{place}"
        one, two = " ".join(first), " ".join(second)
        left, right = (signature(text).sketch[None] for text in (one, two))
        errors.append(float(similarity(left, right)[0]) - jaccard(one, two))
    deviation = MARGIN / 4
    assert np.std(errors) < deviation
    assert np.abs(errors).max() < 4 * deviation
    assert abs(np.mean(errors)) < deviation / 2


def write_texts(directory: Path, texts: list[str], parts: list[list[int]]) -> References:
    """Write the numbered texts and their signatures, two files per part."""
    schema, paths = signatures_schema(DEFAULT, verified=True), []
    for own in parts:
        paths.append(str(directory / f"part-{len(paths)}.refs.arrow"))
        rows = []
        for number in own:
            found = signature(texts[number])
            halves = (found.exact[:8], found.exact[8:])
            high, low = (int.from_bytes(half, "little") for half in halves)
            rows.append(
                {"key": random_keys.document_key(str(number)), "characters": len(texts[number]),
                 "bytes": len(texts[number]), "heldout": False, "exact_high": high,
                 "exact_low": low, "sketch": found.sketch.tobytes()}
                | {f"band_{band:02d}": value for band, value in enumerate(found.bands.tolist())}
            )  # fmt: skip
        batches = [
            pa.RecordBatch.from_pylist(rows[at : at + 3], schema) for at in range(0, len(rows), 3)
        ]
        write_arrow(paths[-1], schema, batches)
        table = pa.table({"sentences": pa.array([[texts[at]] for at in own], TEXTS)})
        path = paths[-1].replace(".refs", "")
        write_arrow(path, table.schema, table.to_batches(max_chunksize=3))
    return References(paths, list(map(len, parts)), ["text"] * len(parts))


def originals(directory: Path, texts: list[str], parts: list[list[int]]) -> dict[int, int]:
    """Return the kept document of each dropped one, by their numbers in `texts`."""
    files = write_texts(directory, texts, parts)
    paths = [path.removesuffix(".refs.arrow") for path in files.paths]
    units = range(write_units(str(directory), paths, files.documents))
    columns = SignatureColumns(str(directory))
    columns.gather(batch for unit in units for batch in read_signatures(str(directory), unit))
    read = np.concatenate([np.array(own, dtype=np.int64) for own in parts])
    found = find_duplicates(columns, document_texts(columns, paths), DEFAULT, True, LIMIT)
    return dict(zip(read[found.numbers].tolist(), read[found.of].tolist(), strict=True))


@st.composite
def pages(draw):
    """Texts of a few templates with own words, copies and edited copies, and two orders of them."""
    count = draw(st.integers(2, 24))
    texts: list[str] = []
    for number in range(count):
        kind = draw(st.sampled_from(["page", "page", "copy", "edit"])) if texts else "page"
        if kind == "page":
            template = draw(st.integers(0, 1))
            own = draw(st.integers(0, 40))
            words = [f"t{template}x{place}" for place in range(draw(st.integers(20, 40)))]
            words += [f"p{number}x{place}" for place in range(own)]
        else:
            words = texts[draw(st.integers(0, len(texts) - 1))].split()
            if kind == "edit":
                words[draw(st.integers(0, len(words) - 1))] = "edited"
        texts.append(" ".join(words))
    orders = [draw(st.permutations(range(count))) for _ in range(2)]
    cuts = [sorted(draw(st.lists(st.integers(0, count), max_size=4))) for _ in range(2)]
    parts = [
        [list(part) for part in np.split(np.array(order), cut)]
        for order, cut in zip(orders, cuts, strict=True)
    ]
    return texts, parts, draw(st.integers(1, 12))


@given(pages())
@settings(max_examples=12, deadline=None)
def test_any_order_and_any_parts_keep_the_same_documents(drawn):
    """Each dropped document is like the kept one it names, and no two kept ones are copies."""
    texts, (one, other), size = drawn
    with tempfile.TemporaryDirectory() as name:
        places = [Path(name) / str(number) for number in range(3)]
        for place in places:
            place.mkdir()
        of = originals(places[0], texts, one)
        assert originals(places[1], texts, other) == of
        references = write_texts(places[2], texts, one)
        sizes = Sizes(partition=size)
        assert by_lists(places[2], references, sizes, minhash=DEFAULT) == by_one(
            places[2], references, minhash=DEFAULT
        )
    for dropped, kept in of.items():
        assert kept not in of
        assert jaccard(texts[dropped], texts[kept]) >= LIMIT
        assert len(texts[dropped]) <= len(texts[kept])
    stay = [text for number, text in enumerate(texts) if number not in of]
    assert len(set(stay)) == len(stay)
    found = [signature(text) for text in texts]
    for one, other in itertools.combinations(sorted({*range(len(texts))} - of.keys()), 2):
        if (found[one].bands == found[other].bands).any():
            exact = jaccard(texts[one], texts[other])
            estimate = similarity(found[one].sketch[None], found[other].sketch[None])[0]
            assert exact < LIMIT or estimate < LIMIT - MARGIN
