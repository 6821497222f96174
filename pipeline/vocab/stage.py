"""Stage "vocab": a corpus in, a tokenizer out; or a tokenizer in, and the same or a longer one out.

It is trained on a sample of the training split, chosen by the documents' keys, so that the same corpus gives the same
bytes on every machine. Transformers' `AutoTokenizer` opens the artifact's directory.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import DataError, UsageError
from pipeline.core.stage import Build, Input, Outcome, Stage
from pipeline.vocab.config import VocabConfig
from pipeline.vocab.cost import COSTS
from pipeline.vocab.trainers.table import TRAINERS

if TYPE_CHECKING:
    from pipeline.tokenizer.tokenizer import Tokenizer
    from pipeline.vocab.extend import Word
    from pipeline.vocab.sample import Sample

VERSION = 1
REPORT = "report.json"  # of the held-out text, so no part of the content that later stages follow from
WORDS = "added_words.tsv"
SHOWN_WORDS = 100


def run(config: VocabConfig, build: Build) -> Outcome:
    """Train or take over, save, and measure on held-out text.

    The summary's `fertility` is pieces a word, `unknown_rate` the share of unknown pieces (both None without a corpus);
    `report.json` has all that `pipeline.vocab.measure` says.

    Raises:
        DataError: the corpus, or the tokenizer that is taken over, is missing, damaged or empty.
        UsageError: `size` leaves no room for the characters of the text; there is no corpus to learn from.
    """
    from pipeline.core import storage
    from pipeline.corpus.shards import CorpusShards
    from pipeline.vocab.draw import draw_samples
    from pipeline.vocab.measure import measure

    sample = heldout = None
    if "corpus" in build.inputs:
        corpus = CorpusShards.open(build.inputs["corpus"])
        sample, heldout = draw_samples(build, corpus, config.sample_bytes)
        build.counters["sample/documents"] += sample.cut.documents
        build.counters["sample/bytes"] += sample.cut.size
    tokenizer, base, words = _make(config, build, sample)
    tokenizer.save(build.path)
    measured: dict[str, Any] = {}
    summary: dict[str, Any] = {
        "size": tokenizer.vocab_size,
        "kind": tokenizer.kind,
        "fertility": None,
        "unknown_rate": None,
        "sample_bytes": sample.cut.size if sample else 0,
    }
    if heldout is not None:
        build.report.progress(0, None, "", {"step": "measure"})
        documents = list(heldout.sentences())
        measured["tokenizer"] = measure(tokenizer, documents)
        if base is not None and config.extend_path:
            measured["before"] = measure(base, documents)
            summary["fertility_before"] = measured["before"]["fertility"]
        for name in ("fertility", "unknown_rate", "single_piece_words", "bytes_per_piece"):
            summary[name] = measured["tokenizer"][name]
    if config.extend_path:
        assert base is not None
        _write_words(build, words, tokenizer)
        build.counters["words/added"] += len(words)
        summary |= {"added": len(words), "added_pieces": tokenizer.vocab_size - base.vocab_size}
        summary["added_words"] = [word.text for word in words[:SHOWN_WORDS]]
    content = json.dumps(measured, indent=1, sort_keys=True) + "\n"
    storage.write_bytes(build.file(REPORT), content.encode())
    return Outcome(rows=tokenizer.vocab_size, tokens=measured.get("tokenizer", {}).get("pieces", 0), summary=summary)


def _make(config: VocabConfig, build: Build, sample: Sample | None) -> tuple[Tokenizer, Tokenizer | None, list[Word]]:
    """The tokenizer, the one it was taken over from, and the words that were added."""
    from pipeline.core.registry import load as load_object
    from pipeline.tokenizer import load
    from pipeline.tokenizer.tokenizer import Tokenizer

    if config.base is not None:
        base = load(config.base, config.lowercase)
        if config.import_path:
            return base, base, []
        extended, words = _extend(config, build, sample, base)
        return extended, base, words
    if sample is None:
        raise UsageError(f"a {config.kind} vocabulary is learned from text; give a corpus, or import_path to take one over")
    trainer = TRAINERS[config.kind]
    trained = load_object(trainer.function)(
        sample.reported(build.report),
        config,
        size=config.size or trainer.size,
        lowercase=trainer.lowercase if config.lowercase is None else config.lowercase,
        strip_accents=config.strip_accents,
    )
    return Tokenizer.of(trained, build.path), None, []


def _extend(config: VocabConfig, build: Build, sample: Sample | None, base: Tokenizer) -> tuple[Tokenizer, list[Word]]:
    from collections import Counter

    from pipeline.core import storage
    from pipeline.vocab import extend as extending

    assert config.extend_path is not None
    if sample is None and config.add:
        raise UsageError(f"add ({config.add}) chooses words of a corpus; give one, or name the words in words_path")
    counts: Counter[str] = Counter()
    if sample is not None:
        counts = extending.count_candidates(base, sample.reported(build.report)())
    listed: list[str] = []
    if config.words_path:
        try:
            lines = storage.read_text(config.words_path).splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"{config.words_path} is not UTF-8 at byte {error.start}; it holds one word a line") from error
        listed = extending.given_words(base, lines, config.words_path)
    words = extending.weigh(base, counts, listed)
    others = Counter({word: count for word, count in counts.items() if word not in set(listed)})
    words += extending.choose(base, others, config.add, config.min_frequency)
    extended, added = extending.extend(base, words, counts.total(), config.extend_path)
    build.counters["words/one_piece_before"] += sum(word.pieces <= 1 for word in words)
    build.counters["words/not_one_piece"] += sum(word.pieces > 1 for word in words) - len(added)
    return extended, added


def _write_words(build: Build, words: list[Word], tokenizer: Tokenizer) -> None:
    """The added words, best first: word, id, how often it occurs, pieces before, score."""
    import numpy as np

    from pipeline.core import storage

    ids, _ = tokenizer.encode_flat([word.text for word in words], np.ones(len(words), np.bool_))
    lines = ["word\tid\tcount\tpieces\tscore"]
    lines += [f"{w.text}\t{n}\t{w.count}\t{w.pieces}\t{w.score}" for w, n in zip(words, ids.tolist(), strict=True)]
    storage.write_bytes(build.file(WORDS), "".join(f"{line}\n" for line in lines).encode())


STAGE = Stage(
    name="vocab",
    version=VERSION,
    config=VocabConfig,
    run=run,
    inputs={"corpus": Input(kinds=("corpus", "semdedup"))},
    volatile=(REPORT,),
    worker="pipeline",
    headline=lambda summary: f"{summary['size']:,} pieces",
    costs=COSTS,
    compared=("size", "fertility"),
)
