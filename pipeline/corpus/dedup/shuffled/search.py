"""Corpus stage, second step, of a corpus that one process should not hold: the same plan, by the engine's own shuffle."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.core import storage
from pipeline.core.humanize import si
from pipeline.core.stage import Build
from pipeline.corpus.dedup.columns import Columns
from pipeline.corpus.dedup.duplicates import ROUNDS
from pipeline.corpus.dedup.plan import DUPLICATE_ID, EXACT, KEPT, Plan, Wanted, find_duplicates, local_room, mixed
from pipeline.corpus.dedup.shuffled.blocks import SIZES, Sizes, block_file, cut_blocks, write_blocks
from pipeline.corpus.dedup.shuffled.components import Hook, Jump
from pipeline.corpus.dedup.shuffled.figures import KEPT_ROWS, KINDS, Figures, added_up
from pipeline.corpus.dedup.shuffled.firsts import Firsts
from pipeline.corpus.dedup.shuffled.near import Follow, Lead
from pipeline.corpus.dedup.shuffled.origins import ToOrigins, sizes, write_dropped
from pipeline.corpus.dedup.shuffled.places import TAKEN, Place
from pipeline.corpus.dedup.shuffled.ranges import CUTS, ByRank, cut_ranges
from pipeline.corpus.dedup.shuffled.records import save
from pipeline.corpus.dedup.shuffled.screen import FOUND, Screen, looked_at
from pipeline.corpus.dedup.shuffled.undecided import decide
from pipeline.engines.exchange import Exchange, exchange
from pipeline.engines.fan_out import fan_out

_LOGGER = logging.getLogger(__name__)


def shuffled_plan(
    build: Build, references: Sequence[str], documents: Sequence[int], wanted: Wanted, most: int, held: Sizes = SIZES
) -> Plan:
    """As `dedup.plan.plan`, on the build's engine.

    Args:
        references: a file of references for each part, which all workers see.
        documents: of each part.
        most: documents that one process may compare.
        held: what workers hold at once.
    """
    search = _Search(build, references, documents, wanted, most, held)
    search.find()
    return search.place()


class _Search:
    """The steps, in their order; each is there when it is asked for again."""

    def __init__(
        self, build: Build, references: Sequence[str], documents: Sequence[int], wanted: Wanted, most: int, held: Sizes
    ) -> None:
        self.build, self.wanted, self.most, self.held = build, wanted, most, held
        self.directory = storage.join(build.scratch, "dedup")
        blocks = cut_blocks(references, documents, held.block)
        write_blocks(storage.join(self.directory, "blocks"), blocks)
        self.blocks, self.documents = len(blocks), sum(documents)
        self.ranges = 0

    def find(self) -> None:
        """Find the duplicates, and tell each block of its own."""
        wanted = self.wanted
        columns = looked_at(wanted.minhash, wanted.exact)
        slices = max(1, math.ceil(self.documents / self.held.bucket))
        screen = Screen(directory=self.directory, columns=columns, slices=slices, sampled=self.held.sampled)
        screened = self._exchange("screen", screen, self.blocks)
        found = sum(result["found"] for result in screened)
        if found <= self.most:
            self._in_one_process()
            return
        cuts = cut_ranges([row for result in screened for row in result["sample"]], max(1, round(found / self.held.block)))
        save(storage.join(self.directory, CUTS), cuts=cuts)
        self.ranges, self.slices = len(cuts) + 1, max(1, math.ceil(found / self.held.bucket))
        self._exchange("rank", ByRank(directory=self.directory), self.blocks, self.ranges)
        left, state = self._firsts(DUPLICATE_ID, "", "ids"), "ids"
        if wanted.exact:
            left, state = self._firsts(EXACT, state, "exact"), "exact"
        if wanted.minhash is not None:
            state = self._similar(state, left) if wanted.threshold else self._linked(state, left)
        for number in (1, 2):  # a duplicate of a duplicate: an id's double may be of a document that is one itself
            state, moved = self._jump(state, f"roots-{number}")
            if not moved:
                break
        self._exchange("origins", ToOrigins(directory=self.directory, before=state), self.ranges, self.blocks)

    def _exchange(self, step: str, work: Exchange, asking: int, settling: int | None = None) -> list[dict[str, Any]]:
        return exchange(self.build, f"dedup-{step}", work, asking, settling)

    def _in_one_process(self) -> None:
        """By the columns of the documents that share anything with others."""
        wanted = self.wanted
        with tempfile.TemporaryDirectory(prefix="cloze-plan-", dir=local_room(self.directory)) as room:
            columns = Columns(room)
            columns.gather([block_file(self.directory, FOUND, number) for number in range(self.blocks)])
            found = find_duplicates(columns, wanted.minhash, wanted.exact, wanted.threshold)
            where = columns.load("where")
        dropped = np.flatnonzero(found.reason != KEPT)
        of = found.of[dropped]
        size = sizes(of.astype(np.int64))
        edges = np.searchsorted(dropped, columns.begins)
        for number, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            own = dropped[begin:end]
            write_dropped(self.directory, number, where[own], found.reason[own], where[of[begin:end]], size[begin:end])

    def _firsts(self, why: int, before: str, after: str) -> int:
        """Returns how many documents stay so far."""
        work = Firsts(directory=self.directory, why=why, before=before, after=after, slices=self.slices)
        return sum(result["left"] for result in self._exchange(after, work, self.ranges))

    def _similar(self, state: str, waiting: int) -> str:
        """Rounds until nobody is undecided, or so few that one process decides. Returns the last step."""
        minhash = self.wanted.minhash
        assert minhash is not None
        done = 0
        while waiting > self.most and done < self.held.rounds:
            lead = Lead(
                directory=self.directory,
                before=state,
                after=f"lead-{done:02d}",
                bands=minhash.bands,
                slices=self.slices,
            )
            if not sum(result["blocked"] for result in self._exchange(lead.after, lead, self.ranges)):
                return lead.after
            follow = Follow(
                directory=self.directory,
                before=lead.after,
                after=f"follow-{done:02d}",
                minima=minhash.minima,
                threshold=self.wanted.threshold,
            )
            waiting = sum(result["waiting"] for result in self._exchange(follow.after, follow, self.ranges))
            state, done = follow.after, done + 1
        if not waiting:
            return state
        return self._decide(state, waiting, ROUNDS - done)

    def _linked(self, state: str, waiting: int) -> str:
        """Hooks and jumps until all components are found. Returns the last step."""
        minhash = self.wanted.minhash
        assert minhash is not None
        if waiting <= self.most:
            return self._decide(state, waiting, 0)
        for number in range(self.held.rounds):
            hook = Hook(
                directory=self.directory,
                before=state,
                after=f"hook-{number:02d}",
                bands=minhash.bands,
                slices=self.slices,
            )
            if not sum(result["moved"] for result in self._exchange(hook.after, hook, self.ranges)):
                return hook.after
            state, moved = hook.after, 1
            for jump in range(self.held.rounds):  # a tree is half as deep after each
                state, moved = self._jump(state, f"jump-{number:02d}-{jump:02d}")
                if not moved:
                    break
        return self._decide(state, waiting, 0)

    def _jump(self, before: str, after: str) -> tuple[str, int]:
        jump = Jump(directory=self.directory, before=before, after=after)
        return after, sum(result["moved"] for result in self._exchange(after, jump, self.ranges))

    def _decide(self, state: str, waiting: int, rounds: int) -> str:
        minhash = self.wanted.minhash
        assert minhash is not None
        if waiting > self.most:
            _LOGGER.warning(
                "%s documents are undecided after %d rounds; one process compares them, with about %sB of memory",
                f"{waiting:,}", self.held.rounds, si(waiting * 65),
            )  # fmt: skip
        decide(self.build, self.directory, state, "decided", self.ranges, minhash, self.wanted.threshold, rounds)
        return "decided"

    def place(self) -> Plan:
        """Place what stays, and add up the figures."""
        wanted, names = self.wanted, sorted(set(self.wanted.kinds))
        kinds = np.array([names.index(kind) for kind in wanted.kinds], np.int16)
        save(storage.join(self.directory, KINDS), kinds=kinds)
        mixed_by = "" if wanted.mix is None else wanted.mix.mixture_by
        work = Figures(directory=self.directory, examples=wanted.examples, mixed_by=mixed_by)
        units = [(f"{number:06d}", {"number": number}) for number in range(self.blocks)]
        told = added_up(fan_out(self.build, "dedup-figures", units, work, unit_name="blocks"), names, wanted.examples)
        if wanted.mix is not None:
            told |= self._mix(names, told["dropped"])
        shards = max(1, math.ceil(told["bytes"] / wanted.shard_bytes))
        each = max(1, math.ceil(shards * self.held.bucket / max(1, self.documents)))
        place = Place(
            directory=self.directory,
            shards=shards,
            each=each,
            chosen=wanted.mix is not None,
            duplicates=wanted.duplicates_file is not None,
        )
        self._exchange("place", place, self.blocks, place.pieces)
        place.join(wanted.plan_file, wanted.duplicates_file)
        return Plan(shards=shards, **told)

    def _mix(self, names: list[str], dropped: Any) -> dict[str, Any]:
        """Choose among the documents that stay, in this process. Returns the figures that follow from it."""
        assert self.wanted.mix is not None
        with tempfile.TemporaryDirectory(prefix="cloze-plan-", dir=local_room(self.directory)) as room:
            columns = Columns(room)
            columns.gather([block_file(self.directory, KEPT_ROWS, number) for number in range(self.blocks)])
            key, words, heldout, group = (columns.load(name) for name in ("key", "words", "heldout", "group"))
            size = columns.load("bytes")
        taken = mixed(key, words, heldout, group, names, self.wanted.mix)
        order = np.argsort(taken.numbers, kind="stable")
        numbers, copies = taken.numbers[order], taken.copies[order]
        edges = np.searchsorted(numbers, columns.begins)
        for block, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            rows = numbers[begin:end] - columns.begins[block]
            save(block_file(self.directory, TAKEN, block, "npz"), rows=rows, copies=copies[begin:end])
        return {
            "documents": int(numbers.size),
            "bytes": int(size[numbers].sum(dtype=np.int64)),
            "heldout": int(np.count_nonzero(heldout[numbers])),
            "dropped": dropped + taken.dropped,
            "mixed": taken.groups,
        }
