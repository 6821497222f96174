"""Retrieval-augmented generation (Lewis et al., 2020): text-to-text with passages of an index.

    RAG-Sequence   p(y | x) = sum over z of p(z | x) prod over t of p(y_t | x, z, y_<t)
    RAG-Token      p(y | x) = prod over t of sum over z of p(z | x) p(y_t | x, z, y_<t)

p(z | x) is the softmax of the scores of the k best passages z. The generator reads
`[CLS] x [SEP] z [SEP]`. The gradient reaches the generator and the query encoder; passages keep the
vectors that `cloze embed-corpus` computed.

Shapes: B inputs, k passages of each, N passages of the index, D width of vectors, T target length,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.lineage import containing_artifact
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.labs.embed import BiEncoder
from cloze.labs.retrieval.passage_tokens import (
    PassageTokens,
    log_marginal,
    log_prior,
    log_probabilities,
    of_labels,
)
from cloze.labs.retrieval.passages import PassageIndex
from cloze.labs.seq2seq.decoder import BeamSearch, EncoderDecoder, generate
from cloze.labs.seq2seq.kv_cache import Memory
from cloze.labs.seq2seq.stages import VECTORS
from cloze.labs.vectors import SCALE, find_input, read_vectors, vectors_file_name
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import load_backbone, new_backbone
from cloze.model.families.registry import parse_model
from cloze.model.layers.batch import IGNORE_INDEX
from cloze.model.tasks.options import TEMPERATURE
from cloze.model.tasks.task import Loss, TaskMetadata
from cloze.model.train.resume.initialization import check_vocabulary
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

RETRIEVAL = "retrieval"  # entry of a checkpoint's task metadata: `RagPassages.metadata`
FEWEST_TOKENS = 16  # of a passage
Marginal = Literal["sequence", "token"]


class PassageStore:
    """Passages of an index with their vectors.

    Args:
        path: vectors of an index, as `cloze embed-corpus` makes them.
        pieces: tokenizer of the generator.
        longest: maximum tokens of a passage, [SEP] included.

    Attributes:
        index: the passages as texts.
        tokens: the passages as tokens.
        vectors: float32 [N, D], of length 1.
        manifest: manifest of the vectors.

    Raises:
        UsageError: `path` has vectors of something else.
        DataError: `path` is no artifact, a file is damaged, or the index is not near.
    """

    def __init__(self, path: str, pieces: Tokenizer, longest: int) -> None:
        self.manifest, self.longest = artifact.read_manifest(path), longest
        corpus = self.manifest.parents.get("corpus", "")
        index = find_input(path, "corpus", corpus) if self.manifest.stage == VECTORS else path
        if index == path or artifact.read_manifest(index).stage != "index":
            raise UsageError(
                f"{path} has no vectors of passages; make some: cloze embed-corpus --corpus INDEX "
                f"--checkpoint RETRIEVER"
            )
        self.index = PassageIndex.open(index)
        files = [vectors_file_name(name) for name in self.index.names]
        parts = [read_vectors(storage.join(path, name))[1] for name in files]
        scaled = np.concatenate(parts).astype(np.float32) / SCALE
        self.vectors = torch.from_numpy(scaled)
        self.tokens = PassageTokens(index, pieces, room=longest, longest=longest, typed=False)

    def to(self, device: torch.device) -> None:
        self.tokens.to(device)
        self.vectors = self.vectors.to(device)


class RagNetwork(nn.Module):
    """Generator and query encoder; it reads passages of the `store` that it is given.

    Args:
        encoder: the generator.
        values: `RagPassages.metadata`: the query encoder, with random weights, and its temperature.
        passages: k.
        marginal: sum over passages per sequence or per token.
        search: search for the text.
        retrieval: passages, and first weights of the query encoder; None: those of the network's
            checkpoint, see `attach`.

    Attributes:
        store: passages; a checkpoint does not contain them.
    """

    store: PassageStore

    def __init__(
        self,
        encoder: EncoderDecoder,
        values: TaskMetadata,
        passages: int,
        marginal: Marginal,
        search: BeamSearch,
        retrieval: RagPassages | None = None,
    ) -> None:
        super().__init__()
        self._retrieval = retrieval
        if retrieval is not None:
            self.store = retrieval.store
        backbone = new_backbone(parse_model(values["model"]))
        self.encoder, self.search = encoder, search
        self.retriever = BiEncoder(*backbone, values["pooling"], normalize=True)
        self.passages, self._marginal = passages, marginal
        self._temperature = float(values["temperature"])

    def begin(self) -> None:
        """Start with the query encoder that computed the passages' vectors."""
        if self._retrieval is not None:
            self.retriever.load_state_dict(dict(self._retrieval.state))

    def attach(self, pieces: Tokenizer, path: str, metadata: TaskMetadata) -> None:
        """Open the passages of the checkpoint at `path`, unless there are some."""
        if not hasattr(self, "store"):
            self.store = open_store(metadata, path, pieces)

    def retrieve(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the best passages, int64 [B, k], and log p(z | x), float32 [B, k]."""
        ids, vectors = batch["input_ids"], self.store.vectors
        questions = self.retriever.embed({**batch, "token_type_ids": torch.zeros_like(ids)})
        scores = questions.detach().float() @ vectors.T
        numbers = scores.topk(min(self.passages, len(vectors)), dim=1).indices
        return numbers, log_prior(questions, vectors[numbers], self._temperature)

    def read(self, batch: Mapping[str, Any]) -> tuple[Memory, Tensor, Tensor]:
        """Retrieve, and read each input with each of its passages.

        Returns:
            Memory of B * k rows, the k rows of an input together; passages and log p(z | x).
        """
        ids = batch["input_ids"]
        self.store.to(ids.device)
        numbers, prior = self.retrieve(batch)
        count, lengths = numbers.shape[1], batch["attention_mask"].sum(dim=1)
        joined = self.store.tokens.after(
            ids.repeat_interleave(count, dim=0), lengths.repeat_interleave(count), numbers.flatten()
        )
        memory = self.encoder.memory_of(joined["input_ids"], joined["attention_mask"])
        return memory, numbers, prior

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """Return `prior` [B, k] and `seq2seq_logits` [B * k, T, V]; without gradient ids [B, T]."""
        memory, numbers, prior = self.read(batch)
        if not torch.is_grad_enabled():
            return self.write(memory, prior, self.search)
        labels = batch["target_labels"].repeat_interleave(numbers.shape[1], dim=0)
        return {"prior": prior, "seq2seq_logits": self.encoder.target_logits(memory, labels)}

    def write(self, memory: Memory, prior: Tensor, search: BeamSearch) -> Tensor:
        """Return the best output of each input, int64 [B, T], padded.

        RAG-Token searches by the mixture of the next-token distributions. RAG-Sequence searches
        with each passage alone and takes the output with the highest p(y | x), for which the
        generator reads every output with every passage (the paper's thorough decoding).
        """
        if self._marginal == "token":
            return generate(self.encoder, memory, search, prior)
        written = generate(self.encoder, memory, search)
        is_end = written == self.encoder.ids.end
        behind = is_end.cumsum(dim=1) > is_end.long()
        outputs = written.masked_fill(behind, IGNORE_INDEX).view(*prior.shape, -1)
        scores = []
        for labels in outputs.unbind(dim=1):
            logits = self.encoder.target_logits(
                memory, labels.repeat_interleave(prior.shape[1], dim=0)
            )
            likely = _logs(logits, prior)
            scores.append(marginal_log_likelihood(likely, prior, labels, "sequence"))
        best = torch.stack(scores, dim=1).argmax(dim=1)
        rows = torch.arange(len(best), device=best.device)
        chosen: Tensor = written.view(*prior.shape, -1)[rows, best]
        return chosen


def marginal_loss(outputs: Mapping[str, Any], labels: Tensor, marginal: Marginal) -> Loss:
    """Compute -log p(y | x) in nats, summed over targets int64 [B, T], from `RagNetwork`'s outputs.

    A token is right if the mixture of the k next-token distributions has it first.
    """
    prior = outputs["prior"]
    likely = _logs(outputs["seq2seq_logits"], prior)
    total = -marginal_log_likelihood(likely, prior, labels, marginal).sum()
    with torch.no_grad():
        mixed = (likely + prior[:, :, None, None]).logsumexp(dim=1).argmax(dim=-1)
    return Loss(total=total, correct=((mixed == labels) & (labels != IGNORE_INDEX)).sum())


def marginal_log_likelihood(
    likely: Tensor, prior: Tensor, labels: Tensor, marginal: Marginal
) -> Tensor:
    """Return log p(y | x), float32 [B].

    Args:
        likely: float32 [B, k, T, V], log-probabilities of the next token with each passage.
        prior: float32 [B, k], log p(z | x).
        labels: int64 [B, T], -100 behind the last token.
    """
    of_tokens = of_labels(likely, labels[:, None].expand(-1, likely.shape[1], -1))  # [B, k, T]
    if marginal == "sequence":
        return log_marginal(prior, of_tokens.sum(dim=2))
    return log_marginal(prior, of_tokens).masked_fill(labels == IGNORE_INDEX, 0.0).sum(dim=1)


def _logs(logits: Any, prior: Tensor) -> Tensor:
    """Return the log-probabilities of logits [B * k, T, V], float32 [B, k, T, V]."""
    likely = log_probabilities(logits)
    return likely.view(*prior.shape, *likely.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class RagPassages:
    """What a fine-tuning with retrieval starts from.

    Attributes:
        metadata: architecture of the query encoder, and how to use it.
        state: its weights.
    """

    store: PassageStore
    metadata: TaskMetadata
    state: Mapping[str, Tensor]


def load_retrieval(
    path: str, build: BuildContext, pieces: Tokenizer, model: ModelConfig, max_length: int
) -> RagPassages:
    """Read the vectors of passages at `path`, and the checkpoint that computed them.

    Args:
        pieces, model: of the generator.
        max_length: maximum tokens of an input.

    Raises:
        UsageError: generator, inputs and retriever do not fit, or `path` has other vectors.
        DataError: vectors, index or checkpoint are damaged, or not near.
    """
    longest = model.max_position_embeddings - max_length
    store = PassageStore(path, pieces, max(longest, 1))
    manifest = store.manifest
    source = find_input(path, "checkpoint", manifest.parents["checkpoint"])
    loaded = checkpoint.load_input(build, source)
    remedy = "use one vocabulary for both"
    check_vocabulary(tokenizer.load(loaded.tokenizer), pieces, source, remedy)
    if longest < FEWEST_TOKENS or max_length > loaded.model.max_position_embeddings:
        raise UsageError(
            f"max_length ({max_length}) leaves {max(longest, 0)} tokens to a passage, and the "
            f"retriever reads {loaded.model.max_position_embeddings}; set a smaller max_length"
        )
    head = loaded.heads.get("embedding", {})
    metadata = {
        "model": loaded.model.model_dump(mode="json"),
        "pooling": manifest.config.get("pooling") or head.get("pooling", "mean"),
        "temperature": (loaded.task or {}).get("options", {}).get("temperature", TEMPERATURE),
        "checkpoint": manifest.parents["checkpoint"],
        "longest": longest,
    }
    own = BiEncoder(*load_backbone(loaded.model, loaded.state), metadata["pooling"], normalize=True)
    return RagPassages(store=store, metadata=metadata, state=own.state_dict())


def open_store(
    metadata: TaskMetadata, where: str, pieces: Tokenizer, path: str | None = None
) -> PassageStore:
    """Open the passages of a fine-tuned checkpoint at `where`: those at `path`, or its training's.

    Raises:
        UsageError: the vectors at `path` were computed by another checkpoint than the training's.
        DataError: vectors or index are not near.
    """
    values = metadata[RETRIEVAL]
    if path is None:
        owner = containing_artifact(where)
        path = find_input(owner, VECTORS, artifact.read_manifest(owner).parents[VECTORS])
    store = PassageStore(path, pieces, int(values["longest"]))
    if store.manifest.parents["checkpoint"] != values["checkpoint"]:
        raise UsageError(
            f"{path} has vectors of another checkpoint than the one {where} was trained with; "
            f"embed the index with that one"
        )
    return store
