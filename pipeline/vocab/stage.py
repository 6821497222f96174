"""Stages "vocab", which trains or imports a tokenizer, and "compare-vocab".

The sample of the training split is chosen by the documents' keys, so the same corpus gives the same
bytes on every machine. Transformers' `AutoTokenizer` opens the artifact's directory.
"""

from __future__ import annotations

import json
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
    from cloze.pipeline.vocab.sample import Sample

VERSION = 4  # 4: files of GPT-2 and of SentencePiece keep their own special tokens
REPORT = "report.json"  # about held-out text, so not in the content hash of later stages
# Languages in which the capital of `ı` is I; share of the documents from which they are named.
DOTLESS_I, FEWEST_MISCASED = ("az", "tr"), 0.02
SUMMARY_METRICS = (
    "fertility", "unknown_rate", "unknown_characters", "single_piece_words", "bytes_per_piece",
)  # fmt: skip


def run(config: VocabConfig, build: BuildContext) -> StageResult:
    """Train or import a tokenizer, save it, and measure it on held-out text.

    Raises:
        DataError: the corpus, or the imported tokenizer, is missing, damaged or empty.
        UsageError: `size` is too small for the characters of the text, or there is no corpus to
            train on.
    """
    from cloze.pipeline.tokenizer import load

    sample, heldout = samples(build, config.sample_bytes, training=config.import_path is None)
    if config.import_path:
        tokenizer = load(config.import_path, config.lowercase)
    else:
        tokenizer = _train(config, build, sample)
    return save_measured(build, tokenizer, sample, heldout)


def samples(
    build: BuildContext, sample_bytes: int, *, training: bool
) -> tuple[Sample | None, Sample | None]:
    """Return the sample to train on and the one to measure with; None without a corpus."""
    from cloze.pipeline.corpus.files.shards import CorpusShards
    from cloze.pipeline.vocab.sample import draw_samples

    if "corpus" not in build.inputs:
        return None, None
    corpus = CorpusShards.open(build.inputs["corpus"])
    sample, heldout = draw_samples(build, corpus, sample_bytes, training=training)
    if sample is not None:
        build.counters["sample/documents"] += sample.boundary.documents
        build.counters["sample/bytes"] += sample.boundary.size
    return sample, heldout


def save_measured(
    build: BuildContext,
    tokenizer: Tokenizer,
    sample: Sample | None,
    heldout: Sample | None,
    others: Mapping[str, Tokenizer] | None = None,
) -> StageResult:
    """Save a tokenizer as the artifact, and measure it on held-out text.

    Metrics in the summary: `fertility` (tokens per word), `unknown_rate` (share of unknown tokens)
    and `unknown_characters` (share of characters in them); None without a corpus. `report.json` has
    all metrics of `cloze.pipeline.vocab.tokenizer_metrics`.

    Args:
        sample, heldout: results of `samples`.
        others: tokenizers to measure as well, by name; the summary has `fertility_NAME`.
    """
    from cloze.pipeline.vocab.tokenizer_metrics import tokenizer_metrics

    tokenizer.save(build.path)
    report = {}
    if heldout is not None:
        build.report.progress(0, None, "", {"step": "measure"})
        documents, measured = list(heldout.sentences()), {"tokenizer": tokenizer, **(others or {})}
        report = {name: tokenizer_metrics(each, documents) for name, each in measured.items()}
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
    for name in others or {}:
        if name in report:
            summary[f"fertility_{name}"] = report[name]["fertility"]
    content = json.dumps(report, indent=1, sort_keys=True) + "\n"
    storage.write_bytes(build.file(REPORT), content.encode())
    return StageResult(
        rows=tokenizer.vocab_size, tokens=metrics.get("pieces") or 0, summary=summary
    )


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
