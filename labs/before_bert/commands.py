"""The command static-vectors, and the headings of its options."""

from cloze.flows.commands.base.stage_command import StageCommand

HEADINGS = {
    "Vectors": "*method *size *window negative subsample",
    "Training": "*epochs learning_rate hogwild_threads *seed",
    "Evaluation": "*analogies",
}

static_vectors = StageCommand(
    "static-vectors",
    stage="static-vectors",
    help="Train word2vec, fastText or GloVe vectors of a corpus.\n\nThe artifact is a checkpoint,"
    " for `cloze finetune --frozen embeddings` and `cloze neighbours`, and has the vectors in"
    " word2vec's binary format.",
    inputs={
        "corpus": ("--corpus", "Corpus artifact, whose training split is read."),
        "vocab": ("--tokenizer", "Vocabulary of words: `cloze vocab --kind words`."),
    },
)
