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

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.model.data.batch import empty_batch
from cloze.model.families.models import RETRIEVAL
from cloze.model.layers.batch import IGNORE_INDEX, Batch, extend
from cloze.model.objectives import LossSum
from cloze.model.tasks.encode import evaluation_batches
from cloze.model.tasks.kinds.retrieval import BiEncoder
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.loop.interfaces import BatchSource, StepBatches
from cloze.model.train.optimizers.parameters import freeze_unused
from cloze.model.train.precision import Precision, autocast
from cloze.model.train.retriever import Retrieval, Retriever

POSITIONS = 8192  # of passages that are embedded at once


@dataclass(frozen=True, slots=True)
class NumberedSteps:
    """A `BatchSource` whose batches know their step."""

    source: BatchSource

    def step_batches(self, step: int, rank: int, world_size: int) -> StepBatches:
        work = self.source.step_batches(step, rank, world_size)
        number = torch.tensor(step)
        batches = [
            replace(item, batch=extend(item.batch, {"step": number})) for item in work.micro_batches
        ]
        return replace(work, micro_batches=batches)

    def samples(self, steps: int) -> int:
        return self.source.samples(steps)

    def row_ids(self, step: int) -> dict[str, list[int]]:
        return self.source.row_ids(step)


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
        retrieval: Retrieval,
        precision: Precision,
        device_type: str = "cpu",
    ) -> None:
        super().__init__(model, ("mlm",), precision, device_type=device_type)
        self.retrieval, self._options = retrieval, retrieval.options
        # Vectors of the served copy and of the next one, for the interval in `_interval`.
        self._vectors: list[Future[Tensor]] = []
        self._interval = -1
        freeze_unused(self, empty_batch(pad=retrieval.passages.pad))

    @property
    def retriever(self) -> Retriever:
        """The retriever and its copies, a part of `model`."""
        module = self.model.get_submodule(RETRIEVAL)
        assert isinstance(module, Retriever)
        return module

    def loss(self, batch: Batch, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and metrics; the first batch of an interval brings new vectors into use."""
        step: Any = batch.get("step")
        if step is not None and self.training:
            self._refresh(int(step) // self._options.refresh_steps)
        return super().loss(batch, counts)

    def _refresh(self, interval: int) -> None:
        retriever = self.retriever
        if interval <= int(retriever.interval):
            return
        is_first = int(retriever.interval) < 0
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
        interval = int(self.retriever.interval)
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
        for chosen in evaluation_batches(passages.lengths, POSITIONS):
            if not threading.main_thread().is_alive():
                raise RuntimeError("the training has ended")
            numbers = torch.from_numpy(chosen).to(device)
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

    def _sums(self, batch: Batch) -> tuple[list[LossSum], dict[str, Tensor]]:
        """Return the marginal loss, and as outputs sums and counts for held-out metrics."""
        with autocast(self.precision, batch["input_ids"].device.type):
            return self._marginal(batch)

    def _marginal(self, batch: Batch) -> tuple[list[LossSum], dict[str, Tensor]]:
        passages, ids = self.retrieval.passages, batch["input_ids"]
        passages.to(ids.device)
        real = batch["attention_mask"].clone()
        real[:, 0] = True  # a batch without rows has padding alone
        lengths, labels = real.sum(dim=1), batch["masked_labels"]
        row, column = (
            batch["masked_positions"] // ids.shape[1],
            batch["masked_positions"] % ids.shape[1],
        )
        is_target = labels != IGNORE_INDEX
        question: dict[str, Tensor] = {
            "input_ids": ids, "attention_mask": real, "token_type_ids": torch.zeros_like(ids)
        }  # fmt: skip
        questions = self.retriever.current.embed(question)
        numbers = self._candidates(batch, questions, lengths, is_target)
        distinct, place = numbers.unique(return_inverse=True)
        vectors = self.retriever.current.embed(passages.alone(distinct))
        products = questions[:, None] * vectors[place]  # no matrix product: in fp32
        scores = products.sum(dim=2) / self.retrieval.temperature
        # An excluded place holds the empty passage once more, which counts once.
        again = (numbers == passages.count) & (
            torch.arange(numbers.shape[1], device=ids.device) < numbers.shape[1] - 1
        )
        prior = scores.masked_fill(again, -torch.inf).log_softmax(dim=1)
        # The reader: all rows with their first passage, then all with their second, …
        count = numbers.shape[1]
        joined = passages.after(ids.repeat(count, 1), lengths.repeat(count), numbers.T.reshape(-1))
        rows = row + torch.arange(count, device=ids.device)[:, None] * len(ids)
        flat = (rows * joined["input_ids"].shape[1] + column).masked_fill(~is_target, 0)
        outputs = self.model({**joined, "masked_positions": flat.reshape(-1)})
        logits = outputs["mlm_logits"]
        logits = logits if isinstance(logits, Tensor) else logits.whole()
        likely = logits.float().log_softmax(dim=-1).view(count, len(labels), -1)
        right = likely.gather(2, labels.clamp(min=0).expand(count, -1)[:, :, None]).squeeze(2)
        right = right.masked_fill(~is_target, 0.0)
        of_rows = torch.zeros(count, len(ids), device=ids.device).index_add(1, row, right).T
        marginal = (prior + of_rows).logsumexp(dim=1)
        with torch.no_grad():
            weights = prior[row].T[:, :, None].exp()
            guess = (likely.exp() * weights).sum(dim=0).argmax(dim=-1)
            targets = is_target.sum()
            has_target = torch.zeros_like(lengths).index_add(0, row, is_target.long()) > 0
            share = (prior[:, -1].exp() * has_target).sum()
            details = {
                "mlm_null_loss": torch.stack([-of_rows[:, -1].sum(), targets]),
                "mlm_null_share": torch.stack([share, has_target.sum()]),
            }
        correct = ((guess == labels) & is_target).sum()
        return [LossSum(name="mlm", total=-marginal.sum(), count=targets, correct=correct)], details

    def _candidates(
        self, batch: Mapping[str, Any], questions: Tensor, lengths: Tensor, is_target: Tensor
    ) -> Tensor:
        """Return the passages read with each row, the empty one last, int64 [B, k + 1]."""
        count = self.retrieval.passages.count
        numbers = torch.full(
            (len(questions), min(self._options.passages, count)), count, device=questions.device
        )
        if is_target.any():
            excluded = torch.zeros_like(numbers[:, :1]).expand(-1, 2)
            if "source" in batch:
                excluded = self.retrieval.passages.overlapping(batch["source"], lengths)
            numbers = self.search(questions.detach().float(), excluded)
        return torch.cat([numbers, torch.full_like(numbers[:, :1], count)], dim=1)

    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the metrics of `loss`, and of the empty passage: its loss alone, and its share."""
        sums, details = self._sums(batch)
        self.detail_names = tuple(details)
        summed = torch.stack([sums[0].total.detach().double(), sums[0].correct.double()])[:, None]
        return summed, torch.stack(list(details.values()), dim=1).double()
