"""Config of the stage vocab. Imported by the command line at every start, so it knows only the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, field_validator, model_validator

from pipeline.core.config import InputPath, StageConfig
from pipeline.core.errors import did_you_mean
from pipeline.core.options import composed
from pipeline.vocab.trainers.table import TRAINERS

if TYPE_CHECKING:
    from pipeline.vocab.trainers.options import MergeOptions

    class _OfTrainers(MergeOptions, StageConfig): ...

else:
    _OfTrainers = composed("OptionsOfTrainers", StageConfig, (trainer.options for trainer in TRAINERS.values()))


class VocabConfig(_OfTrainers):
    """What the tokenizer is like: trained, or taken over from `import_path`, or `extend_path` and some words more.

    With the options of every kind that can be trained.
    """

    kind: str = "wordpiece"
    """What is trained: wordpiece (BERT), bpe (RoBERTa) or unigram (ALBERT); a name in `pipeline.vocab.trainers.table.TRAINERS`."""
    size: int | None = Field(default=None, ge=6, le=1 << 24)
    """Pieces, special tokens included; text too small to yield as many gives fewer. None: as many as the family has."""
    lowercase: bool | None = None
    """Lowercase the text. None: as BERT's uncased models and ALBERT do and RoBERTa does not; or as the tokenizer taken over does."""
    strip_accents: bool | None = None
    """Remove accents. None: where case is removed (BERT), always (ALBERT); RoBERTa cannot."""
    sample_bytes: int = Field(default=100_000_000, ge=1)
    """UTF-8 bytes of text to train on, or to choose words from; whole documents, in an order drawn from their keys."""
    import_path: InputPath | None = None
    """A tokenizer to take over as it is: all that `pipeline.tokenizer.load` reads."""
    extend_path: InputPath | None = None
    """A tokenizer to extend by whole words; its ids stay."""
    add: int = Field(default=0, ge=0)
    """Words to add to it, those that shorten the corpus most."""
    words_path: InputPath | None = None
    """A file of words to add before those, one a line."""

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in TRAINERS:
            raise ValueError(f"unknown kind of tokenizer; {did_you_mean(kind, TRAINERS)}")
        return kind

    @model_validator(mode="after")
    def _one_way(self) -> VocabConfig:
        if self.import_path and self.extend_path:
            raise ValueError("import_path and extend_path exclude each other; extend_path alone takes over and adds")
        if self.extend_path and not (self.add or self.words_path):
            raise ValueError("extend_path needs words: give add (a number) or words_path (a file)")
        if (self.add or self.words_path) and not self.extend_path:
            raise ValueError("add and words_path need extend_path, the tokenizer that they extend")
        if self.base is not None and (self.size or self.strip_accents is not None):
            raise ValueError("size and strip_accents are for training; a tokenizer taken over has its own: leave them out")
        return self

    @property
    def base(self) -> str | None:
        """The tokenizer that is taken over."""
        return self.import_path or self.extend_path

    def external_fingerprints(self) -> dict[str, str]:
        """By the content of the files that make up a tokenizer, whatever else lies beside them."""
        from pipeline.core import fingerprints
        from pipeline.tokenizer import files

        found = {
            name: files.fingerprint(path)
            for name, path in (("import_path", self.import_path), ("extend_path", self.extend_path))
            if path is not None
        }
        return found | ({"words_path": fingerprints.input_fingerprint(self.words_path)} if self.words_path else {})
