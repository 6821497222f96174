"""Stage extend-vocab: a tokenizer with words of a domain behind its old tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from cloze.core import storage
from cloze.core.artifacts import fingerprints
from cloze.core.config import InputPath, StageConfig
from cloze.core.errors import UsageError
from cloze.core.stages.cost import CostEstimate, CostModel, PlannedBuild
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.pipeline.vocab import stage as vocab
from cloze.pipeline.vocab.config import DEFAULT_SIZE, measure_throughput, sampling_cost

if TYPE_CHECKING:
    from cloze.labs.domain.extend import Word
    from cloze.pipeline.tokenizer.tokenizer import Tokenizer
    from cloze.pipeline.vocab.sample import Sample

WORDS = "added_words.tsv"
SHOWN_WORDS = 100


class ExtendConfig(StageConfig):
    """The tokenizer to extend, and the choice of the words."""

    base: InputPath
    """Tokenizer to extend: a vocab artifact, a Hugging Face directory, or the tokenizer's files."""
    add: int = Field(default=0, ge=0)
    """Number of words of the corpus to add, those that --choose-by puts first."""
    choose_by: Literal["length", "likelihood"] = "length"
    """Score of a word: length, the tokens it saves, or likelihood, the nats that a unigram model of
    the tokens gains."""
    words_file: InputPath | None = None
    """File of words to add first, one per line."""
    lowercase: bool | None = None
    """Lowercase the text. Default: as the tokenizer's files say."""
    min_frequency: int = Field(default=2, ge=1)
    """Minimum frequency of a word."""
    sample_bytes: int = Field(default=100_000_000, ge=1)
    """Bytes of text to choose words from: whole documents, sampled by key."""

    @model_validator(mode="after")
    def _adds_words(self) -> ExtendConfig:
        if not (self.add or self.words_file):
            raise ValueError("nothing is added: set add (a number) or words_file (a file)")
        return self

    def external_fingerprints(self) -> dict[str, str]:
        """Return fingerprints by the contents of the tokenizer's files and of the list of words."""
        from cloze.pipeline.tokenizer import loading

        hashes = {"base": loading.fingerprint(self.base)}
        if self.words_file:
            hashes["words_file"] = fingerprints.input_fingerprint(self.words_file)
        return hashes


def run(config: ExtendConfig, build: BuildContext) -> StageResult:
    """Extend a tokenizer, save it, and measure both on held-out text.

    Raises:
        DataError: the corpus or the tokenizer is missing, damaged or empty.
        UsageError: the tokenizer is of a kind that cannot be extended, a listed word is none, or
            there is no corpus to choose words from.
    """
    from cloze.pipeline.tokenizer import load

    sample, heldout = vocab.samples(build, config.sample_bytes, training=True)
    before = load(config.base, config.lowercase)
    tokenizer, added, missing = _extend(config, build, sample, before)
    result = vocab.save_measured(build, tokenizer, sample, heldout, {"before": before})
    _write_words(build, added, tokenizer)
    build.counters["words/added"] += len(added)
    result.summary.update(
        added=len(added),
        missing=missing,
        added_pieces=tokenizer.vocab_size - before.vocab_size,
        added_words=[word.text for word in added[:SHOWN_WORDS]],
    )
    return result


def _extend(
    config: ExtendConfig, build: BuildContext, sample: Sample | None, base: Tokenizer
) -> tuple[Tokenizer, list[Word], int]:
    """Return the extended tokenizer, the added words, and how many `add` asks for in vain.

    The words of the file come first, then those of the corpus.
    """
    from cloze.labs.domain import extend

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
        if not (listed_words or config.add):
            raise UsageError(f"words_file ({config.words_file}) has no words; add some, or set add")
    words = extend.score_words(base, counts, listed_words, config.choose_by)
    others = counts.copy()
    for word in listed_words:
        del others[word]
    chosen = extend.choose(base, others, config.add, config.min_frequency, config.choose_by)
    words += chosen
    extended, added = extend.extend(base, words, counts.total(), config.base)
    build.counters["words/one_piece_before"] += sum(word.pieces <= 1 for word in words)
    build.counters["words/not_one_piece"] += sum(word.pieces > 1 for word in words) - len(added)
    return extended, added, config.add - len(chosen)


def _write_words(build: BuildContext, words: list[Word], tokenizer: Tokenizer) -> None:
    """Write the added words, best first: word, id, occurrences, tokens before, score."""
    from cloze.labs.domain.extend import encode_after_space

    ids, _ = encode_after_space(tokenizer, [word.text for word in words])
    rows = ["word\tid\tcount\tpieces\tscore"]
    for word, number in zip(words, ids.tolist(), strict=True):
        rows.append(f"{word.text}\t{number}\t{word.count}\t{word.pieces}\t{word.score:.10g}")
    storage.write_bytes(build.file(WORDS), "".join(f"{row}\n" for row in rows).encode())


def estimate_cost(plan: PlannedBuild[ExtendConfig]) -> CostEstimate:
    """Estimate the cost from the size of the sample; a plan does not read the tokenizer."""
    config = plan.config
    return sampling_cost(config.sample_bytes, plan.inputs, DEFAULT_SIZE + config.add)


def _headline(summary: Mapping[str, Any]) -> str:
    """Return how many words were added, how many the corpus lacks, and the tokenizer."""
    fewer = f", {summary['missing']:,} fewer than asked for" if summary.get("missing") else ""
    return f"{summary['added']:,} words added{fewer}; {vocab.headline(summary)}"


STAGE = Stage(
    name="extend-vocab",
    version=vocab.VERSION,
    config=ExtendConfig,
    run=run,
    inputs={"corpus": InputSpec(kinds=("corpus",))},
    unhashed_files=(vocab.REPORT,),
    worker="cloze.pipeline",
    headline=_headline,
    cost_model=CostModel(estimate=estimate_cost, measure=measure_throughput),
    comparison_metrics=("size", "fertility"),
)
