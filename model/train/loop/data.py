"""The data of a pretraining: one dataset or a mixture, opened, verified and put in order."""

from __future__ import annotations

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
        options = (config.seed, config.dynamic_masking, config.global_batch)
        if isinstance(self.train, ShardedRows):
            return make_sampler(self.train, *options)
        assert self.fingerprints is not None
        binned = self.train.bins is not None
        length_group = min(LENGTH_GROUP, config.global_batch) if binned else 1
        first_samples = (
            -(-begun.places.get(fingerprint, 0) // length_group) * length_group
            for fingerprint in self.fingerprints.values()
        )
        return MixtureSampler(
            samplers=tuple(
                make_sampler(dataset, *options) for dataset in self.train.parts.values()
            ),
            draw=MixtureAssignment(
                quotas(list(self.train.shares.values())), config.seed, length_group
            ),
            firsts=tuple(first_samples),
        )


def open_data(config: PretrainConfig, build: BuildContext, world: World) -> TrainingData:
    """Open the datasets that the inputs of a pretraining name.

    Raises:
        DataError: a file is missing or damaged, or there are no rows to train on.
        UsageError: the datasets cannot be mixed.
    """
    paths = stage.inputs_of_role("dataset", build.inputs)
    if len(paths) == 1:
        (path,) = paths.values()
        opened = open_dataset(path, config.dynamic_masking, world)
        return TrainingData(
            info=opened.info,
            train=opened.train,
            heldout=opened.heldout,
            tokenizer=opened.tokenizer,
            fingerprint=fingerprints.input_fingerprint(path),
        )
    dataset_fingerprints = {
        name: fingerprints.input_fingerprint(path) for name, path in paths.items()
    }
    for name, fingerprint in dataset_fingerprints.items():
        if (
            first_name := next(
                other_name
                for other_name, other_fingerprint in dataset_fingerprints.items()
                if other_fingerprint == fingerprint
            )
        ) != name:
            raise UsageError(
                f"datasets {first_name} and {name} are the same one ({paths[name]}); name it "
                f"once, and give it more weight"
            )
    datasets = {
        name: open_dataset(path, config.dynamic_masking, world) for name, path in paths.items()
    }
    check_compatible({name: dataset.info for name, dataset in datasets.items()})
    train = {name: _shards(dataset.train) for name, dataset in datasets.items()}
    shares = row_shares(config, train)
    first_dataset = next(iter(datasets.values()))
    hash_inputs = [
        (name, f"{dataset_fingerprints[name]} {share!r}")
        for name, share in zip(paths, shares, strict=True)
    ]
    return TrainingData(
        info=first_dataset.info,
        train=ConcatenatedRows(train, shares),
        heldout=ConcatenatedRows(
            {name: _shards(dataset.heldout) for name, dataset in datasets.items()}, shares
        ),
        tokenizer=first_dataset.tokenizer,
        fingerprint=fingerprints.combine_hashes(hash_inputs),
        fingerprints=dataset_fingerprints,
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

    Shares follow the weights of `mixture`, or the numbers of rows.

    Raises:
        UsageError: a share is less than one row per block of the mixture.
    """
    sizes = {name: len(rows) for name, rows in train.items()}
    weights = [
        config.mixture.get(name) or size / max(sizes.values()) for name, size in sizes.items()
    ]
    shares = [weight / sum(weights) for weight in weights]
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
