"""The data of a pretraining: one dataset or a mixture, opened, verified and put in order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cloze.core import storage
from cloze.core.artifacts import fingerprints
from cloze.core.artifacts.artifact import HELDOUT, TRAIN
from cloze.core.errors import DataError, UsageError
from cloze.core.stages import stage
from cloze.core.stages.stage import BuildContext
from cloze.model.data.mixture import (
    BLOCK,
    LENGTH_GROUP,
    ConcatenatedRows,
    MixtureAssignment,
    MixtureSampler,
    check_compatible,
    make_sampler,
    quotas,
    training_shards,
)
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import ShardedRows, verify
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.loop.interfaces import StartPosition
from cloze.pipeline.dataset.schema import DatasetInfo

TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """An opened dataset or mixture.

    Attributes:
        info: metadata of the rows.
        tokenizer: tokenizer directory.
        fingerprint: fingerprint of the data; a mixture's includes the weights.
        fingerprints: of a mixture: dataset name -> fingerprint.
    """

    info: DatasetInfo
    train: ShardedRows | ConcatenatedRows
    heldout: ShardedRows | ConcatenatedRows
    tokenizer: str
    fingerprint: str = ""
    fingerprints: Mapping[str, str] | None = None

    def order(self, config: PretrainConfig, begun: StartPosition) -> Sampler | MixtureSampler:
        """Return the sampler that orders the training rows.

        Args:
            begun: start position of this phase; a mixture's datasets continue where earlier phases
                stopped.
        """
        given = (config.seed, config.dynamic_masking, config.global_batch, config.length_group)
        if isinstance(self.train, ShardedRows):
            return make_sampler(self.train, *given)
        assert self.fingerprints is not None
        group = (
            1
            if self.train.bins is None
            else config.length_group or min(LENGTH_GROUP, config.global_batch)
        )
        firsts = (
            -(-begun.places.get(print_, 0) // group) * group
            for print_ in self.fingerprints.values()
        )
        return MixtureSampler(
            samplers=tuple(make_sampler(part, *given) for part in self.train.parts.values()),
            draw=MixtureAssignment(quotas(list(self.train.shares.values())), config.seed, group),
            firsts=tuple(firsts),
        )


def open_data(config: PretrainConfig, build: BuildContext, world: World) -> TrainingData:
    """Open the datasets that the inputs of a pretraining name.

    Raises:
        DataError: a file is missing or damaged, or there are no rows to train on.
        UsageError: the datasets cannot be mixed.
    """
    named = stage.inputs_of_role("dataset", build.inputs)
    if len(named) == 1:
        (path,) = named.values()
        opened = open_dataset(path, config.dynamic_masking, world)
        return TrainingData(
            info=opened.info,
            train=opened.train,
            heldout=opened.heldout,
            tokenizer=opened.tokenizer,
            fingerprint=fingerprints.input_fingerprint(path),
        )
    prints = {name: fingerprints.input_fingerprint(path) for name, path in named.items()}
    for name, found in prints.items():
        if (same := next(other for other, value in prints.items() if value == found)) != name:
            raise UsageError(
                f"datasets {same} and {name} are the same one ({named[name]}); name it once, and "
                f"give it more weight"
            )
    opened_all = {
        name: open_dataset(path, config.dynamic_masking, world) for name, path in named.items()
    }
    check_compatible({name: one.info for name, one in opened_all.items()})
    train = {name: _shards(one.train) for name, one in opened_all.items()}
    shares = row_shares(config, train)
    first = next(iter(opened_all.values()))
    weighed = [
        (name, f"{prints[name]} {share!r}") for name, share in zip(named, shares, strict=True)
    ]
    return TrainingData(
        info=first.info,
        train=ConcatenatedRows(train, shares),
        heldout=ConcatenatedRows(
            {name: _shards(one.heldout) for name, one in opened_all.items()}, shares
        ),
        tokenizer=first.tokenizer,
        fingerprint=fingerprints.combine_hashes(weighed),
        fingerprints=prints,
    )


def open_dataset(path: str, dynamic: bool, world: World) -> TrainingData:
    """Open the dataset at `path` and verify the hashes of its files.

    Raises:
        DataError: a file is missing or damaged, or there are no rows to train on.
    """
    world.decide_on_rank_zero(lambda: verify(path))
    train = training_shards(path, dynamic)
    if not len(train) or train.info is None:
        raise DataError(
            f"{path} has no training rows ({TRAIN}-*.arrow); make a dataset from more text"
        )
    tokenizer = storage.join(path, TOKENIZER)
    if not storage.is_dir(tokenizer):
        raise DataError(
            f"{tokenizer} is missing, so no checkpoint could be used; make the dataset again"
        )
    return TrainingData(
        info=train.info,
        train=train,
        heldout=ShardedRows(path, HELDOUT, train.info),
        tokenizer=tokenizer,
    )


def _shards(rows: ShardedRows | ConcatenatedRows) -> ShardedRows:
    assert isinstance(rows, ShardedRows)
    return rows


def row_shares(config: PretrainConfig, train: Mapping[str, ShardedRows]) -> list[float]:
    """Return each dataset's share of the sampled rows, which sum to 1.

    Shares follow the weights, or the sizes to the power of 1 / temperature. Weights and sizes count
    rows or tokens; token shares become row shares by the mean row length.

    Raises:
        UsageError: a share is less than one row per block of the mixture.
    """
    by_tokens = config.mixture_by == "tokens"
    tokens = {name: shards.tokens() if by_tokens else len(shards) for name, shards in train.items()}
    largest = max(tokens.values())
    raw = []
    for name, shards in train.items():
        weight = config.mixture.get(name) or math.pow(
            tokens[name] / largest, 1 / config.mixture_temperature
        )
        raw.append(weight * len(shards) / tokens[name])
    shares = [weight / sum(raw) for weight in raw]
    try:
        quotas(shares)
    except ValueError as error:
        name, share = list(train)[error.args[0]], shares[error.args[0]]
        raise UsageError(
            f"dataset {name} would be {share:.2g} of the rows, and less than 1 in {BLOCK:,} cannot "
            f"be drawn; weigh it more with mixture,"
            " or leave it out"
        ) from None
    return shares
