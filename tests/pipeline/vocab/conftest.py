"""A corpus, and a vocabulary trained on it."""

from __future__ import annotations

import pytest

from cloze.core.stages.execute import BuildResult
from tests.pipeline.vocab.vocabularies import CONFIG, make, write_sample_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_sample_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def vocab(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return make(corpus, tmp_path_factory.mktemp("vocab"), **CONFIG)
