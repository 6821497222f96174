"""Training of static vectors: gensim's word2vec and fastText, and GloVe in torch.

Shapes: V words, D numbers per vector, N pairs of words that occur together.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.arrow import read_arrow
from cloze.core.artifacts.artifact import TRAIN
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.core.stages.stage import CHECKPOINT, BuildContext, Reporter, StageResult
from cloze.labs.before_bert.stages import StaticVectorsConfig
from cloze.labs.before_bert.static import StaticConfig
from cloze.model import checkpoint
from cloze.model.tasks.files import corpus_shards, write_json
from cloze.model.tasks.formats.lines import text_lines
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

Vectors = npt.NDArray[np.float32]

VECTORS, ANALOGIES = "vectors.bin", "analogies.json"
MOST_COMMON = 30_000  # words that analogies are asked about, as word2vec's own program


class Sentences:
    """The training sentences of a corpus as ids; may be iterated over again.

    Attributes:
        words: token of each id.
        tokens: tokens of one pass; 0 before it.
    """

    def __init__(self, path: str, pieces: Tokenizer, report: Reporter) -> None:
        self._files = [storage.join(path, name) for name in corpus_shards(path)]
        self._pieces, self._report = pieces, report
        self._pass, self.tokens = 0, 0
        vocab = pieces.backend.get_vocab(with_added_tokens=True)
        self.words = np.array([""] * pieces.vocab_size, dtype=object)
        self.words[list(vocab.values())] = list(vocab)

    def shards(self) -> Iterator[tuple[I64, I64]]:
        """Iterate over ids, int64 [n], of the shards, and the sentence of each, int64 [n]."""
        self._pass, self.tokens = self._pass + 1, 0
        for number, file in enumerate(self._files):
            self._report.progress(number, len(self._files), "shards", {"pass": self._pass})
            table = read_arrow(file)
            documents = table.filter(pc.equal(table["split"], TRAIN))["sentences"]
            texts = documents.combine_chunks().flatten().to_pylist()
            ids, offsets = self._pieces.encode_flat(texts)
            self.tokens += len(ids)
            yield ids.astype(np.int64), np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))

    def __iter__(self) -> Iterator[list[str]]:
        """Iterate over the words of each sentence, as gensim reads them."""
        for ids, sentences in self.shards():
            ends = np.flatnonzero(np.diff(sentences, append=-1)) + 1
            words = self.words[ids].tolist()
            for start, end in itertools.pairwise([0, *ends.tolist()]):
                yield words[start:end]


def run(config: StaticVectorsConfig, build: BuildContext) -> StageResult:
    """Train vectors of the vocabulary's words, and score them on analogies.

    Words that the corpus does not contain, and the special tokens except [UNK], are zero.

    Raises:
        DataError: corpus or vocabulary is missing, the corpus has no words of the vocabulary, or
            no analogy has all its words among the vectors.
    """
    pieces = tokenizer.load(build.inputs["vocab"])
    sentences = Sentences(build.inputs["corpus"], pieces, build.report)
    vectors = glove(config, sentences) if config.method == "glove" else skip_gram(config, sentences)
    known = np.asarray(vectors.any(axis=1))
    if not known.any():
        raise DataError(
            f"{build.inputs['corpus']} has no words of {build.inputs['vocab']} for training; make "
            f"the vocabulary from this corpus"
        )
    words = sentences.words.tolist()
    write_word2vec(build.file(VECTORS), words, vectors)
    model = StaticConfig(
        vocab_size=len(words), hidden_size=config.size, pad_token_id=pieces.special.pad
    )
    state = {"encoder.embeddings.word.weight": torch.from_numpy(vectors)}
    checkpoint.save_weights(
        build.file(CHECKPOINT), model=model, state=state, tokenizer=pieces, heads={}
    )
    checkpoint.finalize(build.file(CHECKPOINT))
    summary: dict[str, Any] = {
        "checkpoint": CHECKPOINT,
        "method": config.method,
        "words": int(known.sum()),
        "size": config.size,
        "parameters": vectors.size,
        "model": model.model_dump(mode="json"),
    }
    if config.analogies is not None:
        special = {words[number] for number in pieces.special.ids}
        named = {
            word: vector
            for word, vector, is_known in zip(words, vectors, known, strict=True)
            if is_known and word not in special
        }
        results = score_analogies(config.analogies, named)
        write_json(build.file(ANALOGIES), results)
        summary["metrics"] = {"analogies": results["accuracy"]}
    return StageResult(rows=int(known.sum()), tokens=sentences.tokens, summary=summary)


def skip_gram(config: StaticVectorsConfig, sentences: Sentences) -> Vectors:
    """Train gensim's skip-gram with negative samples, or fastText; return vectors [V, D].

    Equal seeds give equal vectors with one thread.
    """
    from gensim.models import FastText, Word2Vec

    trained = {"word2vec": Word2Vec, "fasttext": FastText}[config.method](
        sentences,
        vector_size=config.size,
        window=config.window,
        epochs=config.epochs,
        alpha=config.learning_rate or 0.025,
        negative=config.negative,
        sample=config.subsample,
        min_count=1,
        sg=1,
        workers=config.hogwild_threads,
        seed=config.seed,
    ).wv
    vectors = np.zeros((len(sentences.words), config.size), np.float32)
    for number, word in enumerate(sentences.words.tolist()):
        if word in trained.key_to_index:
            vectors[number] = trained[word]
    return vectors


# GloVe (Pennington et al., 2014). No kept package implements it.

HIGHEST_COUNT, POWER = 100.0, 0.75  # x_max and alpha of equation 9
PAIRS = 4096  # per step


def glove(config: StaticVectorsConfig, sentences: Sentences) -> Vectors:
    """Fit vectors to the logarithms of co-occurrences by AdaGrad; return vectors [V, D].

    A vector is the sum of a word's two, as in the paper's section 4.2. Equal seeds give equal
    vectors.
    """
    # said, or torch's AdaGrad warns
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    counts = co_occurrences(sentences, config.window)
    (rows, columns), values = counts.indices(), counts.values()
    generator = torch.Generator().manual_seed(config.seed)
    # the last column of each table is the bias
    tables = [nn.Embedding(len(sentences.words), config.size + 1, sparse=True) for _ in range(2)]
    for table in tables:
        nn.init.uniform_(table.weight, -0.5 / config.size, 0.5 / config.size, generator=generator)
    optimizer = torch.optim.Adagrad(
        [table.weight for table in tables],
        lr=config.learning_rate or 0.05,
        initial_accumulator_value=1.0,
    )
    logarithms = values.log()
    weights = (values / HIGHEST_COUNT).clamp(max=1.0) ** POWER
    for _ in range(config.epochs):
        order = torch.randperm(len(values), generator=generator)
        for chosen in torch.split(order, PAIRS):
            left, right = tables[0](rows[chosen]), tables[1](columns[chosen])
            product = (left[:, :-1] * right[:, :-1]).sum(dim=1) + left[:, -1] + right[:, -1]
            loss = 0.5 * (weights[chosen] * (product - logarithms[chosen]) ** 2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    summed = (tables[0].weight + tables[1].weight).detach()[:, :-1]
    seen = torch.bincount(rows, minlength=len(summed)) > 0
    return np.ascontiguousarray((summed * seen[:, None]).numpy())


def co_occurrences(sentences: Sentences, window: int) -> Tensor:
    """Return how often words occur together: sparse float32 [V, V], coalesced, symmetric.

    Words d apart in a sentence count 1 / d (section 3.1).
    """
    shape = (len(sentences.words),) * 2
    total = torch.sparse_coo_tensor(
        torch.empty(2, 0, dtype=torch.int64), [], shape, check_invariants=True
    )
    for ids, owners in sentences.shards():
        for distance in range(1, min(window, len(ids) - 1) + 1):
            same = owners[distance:] == owners[:-distance]
            pairs = np.stack([ids[:-distance][same], ids[distance:][same]])
            pairs = np.concatenate([pairs, pairs[::-1]], axis=1)
            counts = torch.full((pairs.shape[1],), 1.0 / distance)
            part = torch.sparse_coo_tensor(
                torch.from_numpy(pairs), counts, shape, check_invariants=True
            )
            total = (total + part.coalesce()).coalesce()
    return total.coalesce()


def write_word2vec(path: str, words: Sequence[str], vectors: Vectors) -> None:
    """Write vectors in word2vec's binary format, which gensim and spaCy read."""
    with storage.atomic_output(path) as output:
        output.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors, strict=True):
            output.write(word.encode() + b" " + vector.astype("<f4").tobytes() + b"\n")


def score_analogies(path: str, vectors: dict[str, Vectors]) -> dict[str, Any]:
    """Score a : b :: c : ? by the nearest word to b - a + c, without the three, ignoring case.

    Args:
        path: file in the format of questions-words.txt: four words a line, `: NAME` begins a
            section.
        vectors: float32 [D] by word, the most frequent words first.

    Returns:
        accuracy: over all questions whose words have vectors; sections: by name, `right` and
        `wrong`, numbers of questions.

    Raises:
        DataError: the file is missing or malformed, or no question has four known words.
    """
    from gensim.models import KeyedVectors

    named = KeyedVectors(len(next(iter(vectors.values()))))
    named.add_vectors(list(vectors), np.stack(list(vectors.values())))
    _check_questions(path)
    with tempfile.NamedTemporaryFile() as copy:
        storage.download(path, copy.name)  # gensim reads no stores
        _, sections = named.evaluate_word_analogies(copy.name, restrict_vocab=MOST_COMMON)
    counts = {
        row["section"]: {"right": len(row["correct"]), "wrong": len(row["incorrect"])}
        for row in sections
    }
    total = counts.pop("Total accuracy")
    asked = total["right"] + total["wrong"]
    if not asked:
        raise DataError(
            f"{path} has no question whose four words are among the {MOST_COMMON:,} most frequent "
            f"ones; train on more text, or give other analogies"
        )
    return {"accuracy": total["right"] / asked, "questions": asked, "sections": counts}


def _check_questions(path: str) -> None:
    """Raise DataError if a line is neither four words nor a section's name."""
    for number, line in text_lines(path):
        if not line.startswith(":") and len(line.split()) != 4:
            raise DataError(
                f"{path}, line {number} ({line[:60]!r}) has not four words, and is no section (: "
                f"NAME); remove it"
            )
