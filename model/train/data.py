"""What a pretraining reads: one dataset, or several mixed; opened, its files compared with their hashes, and the order of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from model.data.mixture import BLOCK, Draw, MixedSampler, MixedShards, check_alike, quotas
from model.data.sampler import Sampler
from model.data.shards import Shards, verify
from model.data.training import LENGTH_GROUP, training_order, training_shards
from model.train.config import PretrainConfig
from model.train.distributed import World
from model.train.interfaces import Position
from pipeline.core import fingerprints, roles, storage
from pipeline.core.errors import DataError, UsageError
from pipeline.core.shards import HELDOUT, TRAIN
from pipeline.core.stage import Build
from pipeline.dataset.schema import DatasetInfo

TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """An opened dataset, or several.

    Attributes:
        info: what they say of their rows.
        tokenizer: the directory of theirs.
        fingerprint: of all of it; of a mixture, with its weights.
        prints: of a mixture, each dataset's fingerprint, by name.
    """

    info: DatasetInfo
    train: Shards | MixedShards
    heldout: Shards | MixedShards
    tokenizer: str
    fingerprint: str = ""
    prints: Mapping[str, str] | None = None

    def order(self, config: PretrainConfig, begun: Position) -> Sampler | MixedSampler:
        """In which order a training goes through its rows.

        Args:
            begun: of this phase; a mixture's datasets go on where the phases before left them.
        """
        given = (config.seed, config.dynamic, config.global_batch, config.length_group)
        if isinstance(self.train, Shards):
            return training_order(self.train, *given)
        assert self.prints is not None
        group = 1 if self.train.bins is None else config.length_group or min(LENGTH_GROUP, config.global_batch)
        firsts = (-(-begun.places.get(print_, 0) // group) * group for print_ in self.prints.values())
        return MixedSampler(
            samplers=tuple(training_order(part, *given) for part in self.train.parts.values()),
            draw=Draw(quotas(list(self.train.shares.values())), config.seed, group),
            firsts=tuple(firsts),
        )


def open_data(config: PretrainConfig, build: Build, world: World) -> Data:
    """What the config and the inputs of a pretraining name.

    Raises:
        DataError: a file is missing or damaged, or there are no rows to train on.
        UsageError: the datasets cannot be mixed.
    """
    named = roles.below("dataset", build.inputs)
    if len(named) == 1:
        (path,) = named.values()
        opened = open_dataset(path, config.dynamic, world)
        return Data(
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
                f"datasets {same} and {name} are the same one ({named[name]}); name it once, and give it more weight"
            )
    opened_all = {name: open_dataset(path, config.dynamic, world) for name, path in named.items()}
    check_alike({name: one.info for name, one in opened_all.items()})
    train = {name: _shards(one.train) for name, one in opened_all.items()}
    shares = row_shares(config, train)
    first = next(iter(opened_all.values()))
    weighed = [(name, f"{prints[name]} {share!r}") for name, share in zip(named, shares, strict=True)]
    return Data(
        info=first.info,
        train=MixedShards(train, shares),
        heldout=MixedShards({name: _shards(one.heldout) for name, one in opened_all.items()}, shares),
        tokenizer=first.tokenizer,
        fingerprint=fingerprints.combine(weighed),
        prints=prints,
    )


def open_dataset(path: str, dynamic: bool, world: World) -> Data:
    """The dataset at `path`, its files compared with their hashes.

    Raises:
        DataError: a file is missing or damaged, or there are no rows to train on.
    """
    world.first_decides(lambda: verify(path))
    train = training_shards(path, dynamic)
    if not len(train) or train.info is None:
        raise DataError(f"{path} has no training rows ({TRAIN}-*.arrow); make a dataset from more text")
    tokenizer = storage.join(path, TOKENIZER)
    if not storage.is_dir(tokenizer):
        raise DataError(f"{tokenizer} is missing, so no checkpoint could be used; make the dataset again")
    return Data(info=train.info, train=train, heldout=Shards(path, HELDOUT, train.info), tokenizer=tokenizer)


def _shards(rows: Shards | MixedShards) -> Shards:
    assert isinstance(rows, Shards)
    return rows


def row_shares(config: PretrainConfig, train: Mapping[str, Shards]) -> list[float]:
    """What each dataset is of the rows that are drawn, together 1: by its weight, or by its size to the power of 1 / temperature.

    Weights and sizes are of rows, or of tokens; a share of the tokens becomes one of the rows by the rows' mean length.

    Raises:
        UsageError: a share is less than one row in a block of the draw.
    """
    by_tokens = config.mixture_by == "tokens"
    tokens = {name: shards.tokens() if by_tokens else len(shards) for name, shards in train.items()}
    largest = max(tokens.values())
    raw = []
    for name, shards in train.items():
        weight = config.mixture.get(name) or math.pow(tokens[name] / largest, 1 / config.mixture_temperature)
        raw.append(weight * len(shards) / tokens[name])
    shares = [weight / sum(raw) for weight in raw]
    try:
        quotas(shares)
    except ValueError as error:
        name, share = list(train)[error.args[0]], shares[error.args[0]]
        raise UsageError(
            f"dataset {name} would be {share:.2g} of the rows, and less than 1 in {BLOCK:,} cannot be drawn; weigh it more with mixture,"
            " or leave it out"
        ) from None
    return shares
