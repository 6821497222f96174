"""Stages "vocab", which trains, imports or extends a tokenizer, and "compare-vocab".

The sample of the training split is chosen by the documents' keys, so the same corpus gives the same
bytes on every machine. Transformers' `AutoTokenizer` opens the artifact's directory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.pipeline.vocab.config import COSTS, CompareConfig, VocabConfig
from cloze.pipeline.vocab.kinds import TRAINERS

if TYPE_CHECKING:
    from cloze.pipeline.tokenizer.tokenizer import Tokenizer
    from cloze.pipeline.vocab.extend import Word
    from cloze.pipeline.vocab.sample import Sample

VERSION = 4  # 4: files of GPT-2 and of SentencePiece keep their own special tokens
REPORT = "report.json"  # about held-out text, so not in the content hash of later stages
WORDS = "added_words.tsv"
SHOWN_WORDS = 100
# Languages in which the capital of `ı` is I; share of the documents from which they are named.
DOTLESS_I, FEWEST_MISCASED = ("az", "tr"), 0.02
SUMMARY_METRICS = (
    "fertility", "unknown_rate", "unknown_characters", "single_piece_words", "bytes_per_piece",
)  # fmt: skip


def run(config: VocabConfig, build: BuildContext) -> StageResult:
    """Train, import or extend a tokenizer, save it, and measure it on held-out text.

    Metrics in the summary: `fertility` (tokens per word), `unknown_rate` (share of unknown tokens)
    and `unknown_characters` (share of characters in them); None without a corpus. `report.json` has
    all metrics of `cloze.pipeline.vocab.tokenizer_metrics`.

    Raises:
        DataError: the corpus, or the imported or extended tokenizer, is missing, damaged or empty.
        UsageError: `size` is too small for the characters of the text, or there is no corpus to
            train on.
    """
    from cloze.pipeline.corpus.files.shards import CorpusShards
    from cloze.pipeline.tokenizer import load
    from cloze.pipeline.vocab.sample import draw_samples

    sample = heldout = original = None
    if "corpus" in build.inputs:
        corpus = CorpusShards.open(build.inputs["corpus"])
        is_training = config.import_path is None
        sample, heldout = draw_samples(build, corpus, config.sample_bytes, training=is_training)
        if sample is not None:
            build.counters["sample/documents"] += sample.boundary.documents
            build.counters["sample/bytes"] += sample.boundary.size
    added: list[Word] = []
    if config.extend_path:
        original = load(config.extend_path, config.lowercase)
        tokenizer, added = _extend(config, build, sample, original)
    elif config.import_path:
        tokenizer = load(config.import_path, config.lowercase)
    else:
        tokenizer = _train(config, build, sample)
    tokenizer.save(build.path)
    report = _measure(build, tokenizer, original, heldout)
    metrics = report.get("tokenizer", dict.fromkeys(("fertility", "unknown_rate")))
    summary: dict[str, Any] = {
        "size": tokenizer.vocab_size,
        "kind": tokenizer.kind,
        "lowercase": tokenizer.lowercase,
        "strip_accents": tokenizer.strips_accents,
        "sample_bytes": sample.boundary.size if sample else 0,
        **{name: metrics[name] for name in SUMMARY_METRICS if name in metrics},
    }
    if tokenizer.lowercase and "corpus" in build.inputs:
        shares = artifact.read_manifest(build.inputs["corpus"]).summary.get("languages", {})
        if miscased := sorted(name for name in DOTLESS_I if shares.get(name, 0) >= FEWEST_MISCASED):
            summary["miscased"] = miscased
    if "before" in report:
        summary["fertility_before"] = report["before"]["fertility"]
    if original is not None:
        _write_words(build, added, tokenizer)
        build.counters["words/added"] += len(added)
        summary |= {"added": len(added), "added_pieces": tokenizer.vocab_size - original.vocab_size}
        summary["added_words"] = [word.text for word in added[:SHOWN_WORDS]]
    content = json.dumps(report, indent=1, sort_keys=True) + "\n"
    storage.write_bytes(build.file(REPORT), content.encode())
    return StageResult(
        rows=tokenizer.vocab_size, tokens=metrics.get("pieces") or 0, summary=summary
    )


def _measure(
    build: BuildContext, tokenizer: Tokenizer, original: Tokenizer | None, heldout: Sample | None
) -> dict[str, Any]:
    """Return the metrics of the tokenizer, and of the one that it extends; empty without text."""
    from cloze.pipeline.vocab.tokenizer_metrics import tokenizer_metrics

    if heldout is None:
        return {}
    build.report.progress(0, None, "", {"step": "measure"})
    documents = list(heldout.sentences())
    tokenizers = {"tokenizer": tokenizer} | ({"before": original} if original else {})
    return {name: tokenizer_metrics(each, documents) for name, each in tokenizers.items()}


def _train(config: VocabConfig, build: BuildContext, sample: Sample | None) -> Tokenizer:
    from cloze.pipeline.tokenizer.tokenizer import Tokenizer

    if sample is None:
        raise UsageError(
            f"a {config.kind} vocabulary is trained on text; give a corpus, or import_path to "
            f"import a tokenizer"
        )
    trainer = TRAINERS[config.kind]
    trained = resolve_name(trainer.function)(
        sample.texts_with_progress(build.report),
        config,
        size=config.size or trainer.size,
        lowercase=trainer.lowercase if config.lowercase is None else config.lowercase,
        strip_accents=config.strip_accents,
    )
    return Tokenizer.of(trained, build.path)


def _extend(
    config: VocabConfig, build: BuildContext, sample: Sample | None, base: Tokenizer
) -> tuple[Tokenizer, list[Word]]:
    """Return the extended tokenizer and the added words: first the file's, then the corpus's."""
    from cloze.pipeline.vocab import extend

    assert config.extend_path is not None
    if sample is None and config.add:
        raise UsageError(
            f"add ({config.add}) chooses words of a corpus; give one, or list the words in "
            f"words_file"
        )
    counts: Counter[str] = Counter()
    if sample is not None:
        counts = extend.count_candidates(base, sample.texts_with_progress(build.report)())
    listed_words: list[str] = []
    if config.words_file:
        expected = "give a UTF-8 file with one word per line"
        lines = storage.read_text(config.words_file, expected).splitlines()
        listed_words = extend.parse_words(base, lines, config.words_file)
    words = extend.score_words(base, counts, listed_words, config.choose_by)
    others = counts.copy()
    for word in listed_words:
        del others[word]
    words += extend.choose(base, others, config.add, config.min_frequency, config.choose_by)
    extended, added = extend.extend(base, words, counts.total(), config.extend_path)
    build.counters["words/one_piece_before"] += sum(word.pieces <= 1 for word in words)
    build.counters["words/not_one_piece"] += sum(word.pieces > 1 for word in words) - len(added)
    return extended, added


def _write_words(build: BuildContext, words: list[Word], tokenizer: Tokenizer) -> None:
    """Write the added words, best first: word, id, occurrences, tokens before, score."""
    from cloze.pipeline.vocab.extend import encode_after_space

    ids, _ = encode_after_space(tokenizer, [word.text for word in words])
    rows = ["word\tid\tcount\tpieces\tscore"]
    for word, number in zip(words, ids.tolist(), strict=True):
        rows.append(f"{word.text}\t{number}\t{word.count}\t{word.pieces}\t{word.score:.10g}")
    storage.write_bytes(build.file(WORDS), "".join(f"{row}\n" for row in rows).encode())


def headline(summary: Mapping[str, Any]) -> str:
    """Summarise size, case, accents and the share of unknown characters."""
    facts = [f"{summary['size']:,} pieces"]
    if "strip_accents" in summary:
        facts.append("lowercase" if summary["lowercase"] else "cased")
        facts.append(
            "accents and vowel signs removed" if summary["strip_accents"] else "accents kept"
        )
    if summary.get("unknown_characters") is not None:
        facts.append(f"{100 * summary['unknown_characters']:.2f} % of characters unknown")
    if miscased := summary.get("miscased"):
        facts.append(
            f"warning: the text is partly in {' and '.join(miscased)}, and lower-casing makes i of "
            f"its I, as in English, instead of ı; set vocab.lowercase to false"
        )
    return ", ".join(facts)


STAGE = Stage(
    name="vocab",
    version=VERSION,
    config=VocabConfig,
    run=run,
    inputs={"corpus": InputSpec(kinds=("corpus",))},
    unhashed_files=(REPORT,),
    worker="cloze.pipeline",
    headline=headline,
    cost_model=COSTS,
    comparison_metrics=("size", "fertility"),
)


def run_comparison(config: CompareConfig, build: BuildContext) -> StageResult:
    """Measure each tokenizer; the summary's `report` has the path and the metrics of each."""
    from cloze.pipeline.vocab.tokenizer_metrics import compare

    return StageResult(summary={"report": compare(build.inputs["corpus"], config.tokenizers)})


COMPARE = Stage(
    name="compare-vocab",
    version=1,
    config=CompareConfig,
    run=run_comparison,
    inputs={"corpus": InputSpec(required=True)},
    worker="cloze.pipeline",
)
