"""Corpus stage: the options of how much of each source or language is taken (pipeline/corpus/mixing.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from pipeline.core.errors import did_you_mean
from pipeline.core.humanize import count_of
from pipeline.corpus.options import AUTO, CorpusOptions


class MixOptions(CorpusOptions):
    """How much of what is left."""

    words: int | None = Field(default=None, ge=1)
    """Take so many words for training, such as 10M, at most and less than a document fewer of each source; without it all."""

    mixture: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """What each kind of source, or each language, is of the words: a weight by its name; without it its own size."""

    mixture_by: Literal["source", "language"] = "source"
    """What the mixture weighs: kinds of sources, or languages."""

    mixture_temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Without weights: each source or language counts its words to the power of 1 / this; more than 1 favours the small ones."""

    mixture_epochs: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    """The most often that a source or language is taken; its documents are repeated, each under an id of its own."""

    @field_validator("words", mode="before")
    @classmethod
    def _a_number(cls, value: Any) -> Any:
        found = count_of(value) if isinstance(value, str) else value
        if found is None and value is not None:
            raise ValueError("no such number; write it as 10M, 2.5M, 800k or 10000000")
        return found

    @model_validator(mode="after")
    def _one_weighing(self) -> Self:
        if self.mixture and self.mixture_temperature != 1:
            raise ValueError("mixture says each weight, and mixture_temperature takes it from the size; give one of them")
        if self.mixture_by == "language" and self.language != AUTO:
            raise ValueError("mixture_by language needs to know each document's: set language to auto")
        if self.mixture_epochs > 1 and not self.mixes:
            raise ValueError(
                "mixture_epochs repeats what a mixture or words asks for; give mixture, mixture_temperature or words"
            )
        return self

    @property
    def mixes(self) -> bool:
        """Whether not simply all that is left is taken."""
        return self.words is not None or bool(self.mixture) or self.mixture_temperature != 1

    def check_kinds(self, kinds: Sequence[str]) -> None:
        """Raises ValueError where the mixture weighs kinds of sources that are not read, or not all that are."""
        if not self.mixture or self.mixture_by != "source":
            return
        for name in self.mixture:
            if name not in kinds:
                raise ValueError(f"mixture weighs {name!r}, and no source is of that kind; {did_you_mean(name, kinds)}")
        lacking = [kind for kind in kinds if kind not in self.mixture]
        if lacking:
            raise ValueError(f"mixture says no weight of {lacking[0]!r}; weigh all kinds of sources, or leave mixture out")
