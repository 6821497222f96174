"""Retrieval in the loop of a pretraining: REALM (Guu et al. 2020).

A masked row x is completed with the help of passages z of an index:

    p(y | x) = sum over z of p(z | x) p(y | x, z)

The retriever, a bi-encoder, gives p(z | x): the softmax of its scores over the best passages, and
the empty passage for rows that need none. The reader is the trained model; it reads
`[CLS] x [SEP] z [SEP]`, and p(y | x, z) is the product over the masked tokens. The gradient reaches
both.

The best passages are found by vectors of an earlier state of the retriever. Every `refresh_steps`
steps, at the same steps in every run:

    served <- next       its vectors come into use; a thread has computed them meanwhile
    next   <- current    the thread begins with the vectors of the retriever as it is now

So the vectors in use are one to two intervals old, and training waits only if the thread is too
slow. Checkpoints contain both copies of the weights. A resumed training computes their vectors
again, and continues exactly, whatever the thread had reached.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext
from cloze.labs.embed import EMBEDDING_HEAD, BiEncoder
from cloze.labs.retrieval.passage_tokens import (
    PassageTokens,
    log_marginal,
    log_prior,
    log_probabilities,
    of_labels,
)
from cloze.labs.retrieval.realm_options import RetrievalFields, RetrievalOptions
from cloze.model import checkpoint
from cloze.model.data.batch import empty_batch
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import load_backbone
from cloze.model.layers.batch import IGNORE_INDEX, Batch
from cloze.model.objectives.losses import MLM
from cloze.model.tasks.options import TEMPERATURE
from cloze.model.train.config import PretrainConfig
from cloze.model.train.evaluate.companion import Companion
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.optimizers.parameters import freeze_unused
from cloze.model.train.precision import Precision, autocast
from cloze.model.train.resume.initialization import check_vocabulary
from cloze.pipeline import tokenizer
from cloze.pipeline.dataset.schema import DatasetInfo

RETRIEVAL = "retrieval"  # name of the retriever's module in the network
RETRIEVER = "retriever"  # directory of the trained retriever's checkpoint
FEWEST_TOKENS = 16  # of a passage
AT_ONCE = 128  # passages that are embedded at once


class Retriever(nn.Module):
    """The trained bi-encoder, and the copies whose vectors are served now and next.

    Attributes:
        interval: number of the interval of steps in which `served` is in use; -1: before the first.
    """

    interval: Tensor

    def __init__(self, current: BiEncoder) -> None:
        super().__init__()
        self.current = current
        for name in ("served", "next"):
            self.add_module(name, copy.deepcopy(current).requires_grad_(False).eval())
        self.register_buffer("interval", torch.tensor(-1))
        self._read = -1, (0, 0)  # the value, and the buffer's place and version

    @property
    def number(self) -> int:
        """The value of `interval`, which the host reads only after the buffer has changed."""
        version = self.interval.data_ptr(), self.interval._version
        if version != self._read[1]:
            self._read = int(self.interval), version
        return self._read[0]

    def train(self, mode: bool = True) -> Retriever:
        """Set the mode of `current`; a thread may be running the copies, without dropout."""
        self.training = mode
        self.current.train(mode)
        return self

    def move_on(self, interval: int) -> None:
        """Make `next` the served copy, and `current` the next one."""
        for target, source in (("served", "next"), ("next", "current")):
            weights = self.get_submodule(source).state_dict()
            self.get_submodule(target).load_state_dict(weights)
        self.interval.fill_(interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealmCompanion(Companion):
    """What a pretraining with retrieval starts from.

    Attributes:
        retriever: bi-encoder as it was tuned, in evaluation mode.
        temperature: divisor of its scores.
        metadata: its checkpoint without weights.
    """

    options: RetrievalOptions
    passages: PassageTokens
    retriever: BiEncoder
    temperature: float
    metadata: checkpoint.LoadedCheckpoint

    uncompiled = "retrieval"

    def extend(self, network: nn.Module) -> None:
        """Add the retriever to the network, for training and its checkpoints."""
        network.add_module(RETRIEVAL, Retriever(self.retriever))

    def module(self, network: nn.Module, precision: Precision, device_type: str) -> RetrievalModule:
        """Return the module whose loss is the marginal likelihood."""
        return RetrievalModule(network, self, precision, device_type)

    def save(self, build: BuildContext, network: nn.Module) -> dict[str, Any]:
        """Save the trained retriever as a checkpoint of its own."""
        path = build.file(RETRIEVER)
        found, state = self.metadata, network.get_submodule(f"{RETRIEVAL}.current").state_dict()
        checkpoint.save_weights(
            path,
            model=found.model,
            state=state,
            tokenizer=found.tokenizer,
            heads=found.heads,
            task=found.task,
        )
        checkpoint.finalize(path)
        return {"retriever": RETRIEVER}


def load_retrieval(
    config: PretrainConfig,
    build: BuildContext,
    model: ModelConfig,
    info: DatasetInfo,
    pieces: str,
    names: Sequence[str],
) -> RealmCompanion | None:
    """Read index and retriever of a pretraining; None without an index.

    Args:
        model: the reader.
        pieces: tokenizer directory of the dataset.
        names: names of the objectives.

    Raises:
        UsageError: an input is missing, or reader, rows, retriever and objectives do not fit.
        DataError: index or retriever is damaged.
    """
    assert isinstance(config, RetrievalFields)
    options = config.retrieval
    index, path = (build.inputs.get(role) for role in ("index", "retriever"))
    if index is None and path is None and options is None:
        return None
    if index is None or path is None:
        raise UsageError(
            f"retrieval needs an index (found {index}) and a retriever (found {path}); name both "
            f"with --retrieve and --retriever"
        )
    if tuple(names) != ("mlm",) or info.pair_task is not None or info.packed:
        raise UsageError(
            f"retrieval is for objective mlm and rows of one text, not for {', '.join(names)} and "
            f"recipe {info.recipe}; use --objective mlm and `cloze dataset --recipe realm`"
        )
    if build.execution.zero or build.execution.engine not in ("auto", "torch"):
        raise UsageError("retrieval is for engine torch without ZeRO; leave engine and zero out")
    loaded = checkpoint.load_input(build, path)
    if EMBEDDING_HEAD not in loaded.heads:
        raise UsageError(
            f"retriever ({path}) was not tuned for retrieval; make one: cloze finetune --task "
            f"inverse-cloze"
        )
    own = tokenizer.load(pieces)
    remedy = f"make the dataset with --tokenizer {loaded.tokenizer}"
    check_vocabulary(tokenizer.load(loaded.tokenizer), own, path, remedy)
    longest = min(
        model.max_position_embeddings - info.length, loaded.model.max_position_embeddings - 1
    )
    if longest < FEWEST_TOKENS or info.length > loaded.model.max_position_embeddings:
        raise UsageError(
            f"length ({info.length}) of the rows leaves {longest} of the "
            f"{model.max_position_embeddings} tokens that the model reads to a passage; make the "
            f"dataset with a smaller --length"
        )
    head, backbone = loaded.heads[EMBEDDING_HEAD], load_backbone(loaded.model, loaded.state)
    tuned = (loaded.task or {}).get("options", {})
    return RealmCompanion(
        options=options or RetrievalOptions(),
        passages=PassageTokens(
            index,
            own,
            room=info.length - 2,
            longest=longest,
            typed=own.pair_frame.typed and model.type_vocab_size > 1,
        ),
        retriever=BiEncoder(*backbone, head["pooling"], bool(head["normalize"])).eval(),
        temperature=float(tuned.get("temperature", TEMPERATURE)),
        metadata=loaded,
    )


class RetrievalModule(PretrainModule):
    """A model that reads retrieved passages; its loss is the marginal likelihood, in `mlm`.

    Parameters that the loss does not reach are frozen.

    Args:
        model: a family's pretraining model with a `Retriever`.
        retrieval: passages and options.
        precision, device_type: see `PretrainModule`.
    """

    def __init__(
        self,
        model: nn.Module,
        retrieval: RealmCompanion,
        precision: Precision,
        device_type: str = "cpu",
    ) -> None:
        super().__init__(model, ("mlm",), precision, device_type=device_type)
        self.retrieval, self._options = retrieval, retrieval.options
        # Of held-out rows: loss and share of the empty passage, in place of details of logits.
        self.objectives = (replace(MLM, details=lambda outputs, batch: dict(outputs)),)
        # Vectors of the served copy and of the next one, for the interval in `_interval`.
        self._vectors: list[Future[Tensor]] = []
        self._interval = -1
        self._on_cpu = device_type == "cpu"  # a GPU would wait while the host asks for sizes
        freeze_unused(self, empty_batch(pad=retrieval.passages.pad))

    @property
    def retriever(self) -> Retriever:
        """The retriever and its copies, a part of `model`."""
        module = self.model.get_submodule(RETRIEVAL)
        assert isinstance(module, Retriever)
        return module

    def forward(self, batch: Batch, counts: Tensor | None = None) -> Any:
        """Score a batch; the first one of an interval of steps brings new vectors into use."""
        step: Any = batch.get("step")
        if step is not None and self.training:
            self._refresh(int(step) // self._options.refresh_steps)
        return super().forward(batch, counts)

    def _refresh(self, interval: int) -> None:
        retriever = self.retriever
        if interval <= retriever.number:
            return
        is_first = retriever.number < 0
        vectors = self._ready()
        for computed in vectors:
            computed.result()  # the thread reads the weights that change now
        retriever.move_on(interval)
        vectors.pop(0)
        # The first copies are equal.
        vectors.append(vectors[0] if is_first else self._embedding("next"))
        self._vectors, self._interval = vectors, interval

    def _ready(self) -> list[Future[Tensor]]:
        """Return the vectors of both copies, computed again after a resume or a rollback."""
        interval = self.retriever.number
        if not self._vectors or interval != self._interval:
            served = self._embedding("served")
            self._vectors = [served, served if interval < 1 else self._embedding("next")]
            self._interval = interval
        return list(self._vectors)

    def _embedding(self, name: str) -> Future[Tensor]:
        """Start to compute the vectors of all passages by a copy, float32 [N, D]."""
        result: Future[Tensor] = Future()
        network, threads = self.retriever.get_submodule(name), torch.get_num_threads()

        def embed() -> None:
            try:
                torch.set_num_threads(threads)  # of this thread, so that sums have one order
                result.set_result(self._embed_all(network))
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=embed, name="passages", daemon=True).start()
        return result

    @torch.no_grad()
    def _embed_all(self, network: nn.Module) -> Tensor:
        passages, embed = self.retrieval.passages, cast(BiEncoder, network).embed
        device, vectors = next(network.parameters()).device, torch.empty(0)
        for numbers in torch.split(passages.by_length.to(device), AT_ONCE):
            if not threading.main_thread().is_alive():
                raise RuntimeError("the training has ended")
            with autocast(self.precision, device.type):
                part = embed(passages.alone(numbers))
            if not len(vectors):
                vectors = part.new_empty(passages.count, part.shape[1])
            vectors[numbers] = part
        return vectors

    @torch.no_grad()
    def search(self, questions: Tensor, excluded: Tensor) -> Tensor:
        """Return the best passages of each question by the served vectors, int64 [B, k].

        Args:
            questions: float32 [B, D].
            excluded: int64 [B, 2], first and end of passages that must not be found; where too few
                others exist, the empty passage fills up.
        """
        vectors = self._ready()[0].result()
        numbers = torch.arange(len(vectors), device=vectors.device)
        scores = (questions @ vectors.T).masked_fill(
            (numbers >= excluded[:, :1]) & (numbers < excluded[:, 1:]), -torch.inf
        )
        best = scores.topk(min(self._options.passages, len(vectors)), dim=1)
        return best.indices.masked_fill(best.values.isinf(), len(vectors))

    def _sums(self, batch: Batch) -> tuple[list[tuple[Tensor, Tensor]], dict[str, Any]]:
        """Return the marginal loss, and as outputs sums and counts for held-out metrics."""
        with autocast(self.precision, batch["input_ids"].device.type):
            return self._marginal(batch)

    def _marginal(self, batch: Batch) -> tuple[list[tuple[Tensor, Tensor]], dict[str, Any]]:
        passages, ids = self.retrieval.passages, batch["input_ids"]
        passages.to(ids.device)
        real = batch["attention_mask"].clone()
        real[:, 0] = True  # a batch without rows has padding alone
        lengths, labels = real.sum(dim=1), batch["masked_labels"]
        positions, length = batch["masked_positions"], ids.shape[1]
        row, column = positions // length, positions % length
        is_target = labels != IGNORE_INDEX
        types = torch.zeros_like(ids)
        question = {"input_ids": ids, "attention_mask": real, "token_type_ids": types}
        questions = self.retriever.current.embed(question)
        numbers = self._candidates(batch, questions, lengths, is_target)
        distinct, place = numbers.flatten(), torch.arange(numbers.numel(), device=ids.device)
        if self._on_cpu:
            distinct, place = torch.unique(numbers, return_inverse=True)
        vectors = self.retriever.current.embed(passages.alone(distinct, fits=self._on_cpu))
        # An excluded place holds the empty passage once more, which counts once.
        again = (numbers == passages.count) & (
            torch.arange(numbers.shape[1], device=ids.device) < numbers.shape[1] - 1
        )
        prior = log_prior(
            questions, vectors[place.view_as(numbers)], self.retrieval.temperature, again
        )
        # The reader: all rows with their first passage, then all with their second, …
        count = numbers.shape[1]
        joined = passages.after(
            ids.repeat(count, 1), lengths.repeat(count), numbers.T.reshape(-1), fits=self._on_cpu
        )
        rows = row + torch.arange(count, device=ids.device)[:, None] * len(ids)
        flat = (rows * joined["input_ids"].shape[1] + column).masked_fill(~is_target, 0)
        outputs = self.model({**joined, "masked_positions": flat.reshape(-1)})
        likely = log_probabilities(outputs["mlm_logits"]).view(count, len(labels), -1)
        right = of_labels(likely, labels.expand(count, -1))
        of_rows = torch.zeros(count, len(ids), device=ids.device).index_add(1, row, right).T
        marginal = log_marginal(prior, of_rows)
        with torch.no_grad():
            weights = prior[row].T[:, :, None].exp()
            guess = (likely.exp() * weights).sum(dim=0).argmax(dim=-1)
            targets = is_target.sum()
            has_target = torch.zeros_like(lengths).index_add(0, row, is_target.long()) > 0
            share = (prior[:, -1].exp() * has_target).sum()
            details = {
                "null_loss": (-of_rows[:, -1].sum(), targets),
                "null_share": (share, has_target.sum()),
            }
        correct = ((guess == labels) & is_target).sum()
        return [(-marginal.sum(), correct)], details

    def _candidates(
        self, batch: Mapping[str, Any], questions: Tensor, lengths: Tensor, is_target: Tensor
    ) -> Tensor:
        """Return the passages read with each row, the empty one last, int64 [B, k + 1]."""
        count = self.retrieval.passages.count
        shape = len(questions), min(self._options.passages, count)
        numbers = torch.full(shape, count, device=questions.device)
        # Collated batches name their source. One without targets is searched for nothing.
        if "source" in batch or is_target.any():
            excluded = torch.zeros_like(numbers[:, :1]).expand(-1, 2)
            if "source" in batch:
                excluded = self.retrieval.passages.overlapping(batch["source"], lengths)
            numbers = self.search(questions.detach().float(), excluded)
        return torch.cat([numbers, torch.full_like(numbers[:, :1], count)], dim=1)
