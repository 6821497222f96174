"""Command `extend-vocab`, and the headings of its options."""

from __future__ import annotations

from cloze.flows.commands.base.stage_command import StageCommand

HEADINGS = {
    "Words": "*base *add *choose_by *words_file min_frequency",
    "Text": "lowercase sample_bytes",
}

extend_vocab = StageCommand(
    "extend-vocab",
    stage="extend-vocab",
    help="Add words to a tokenizer, whose ids stay.\n\nPATH of --base is a vocab artifact, a"
    " checkpoint, a Hugging Face directory, a vocab.txt, a tokenizer.json, a vocab.json next to its"
    " merges.txt, or a spiece.model.",
    inputs={"corpus": ("--corpus", "Corpus artifact to choose words from, and to measure with.")},
)
