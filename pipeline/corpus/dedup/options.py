"""Corpus stage: the options of the search for duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pipeline.corpus.options import CorpusOptions


@dataclass(frozen=True, slots=True)
class MinHash:
    """Parameters of the search for near duplicates; the defaults are datatrove's (`MinhashConfig`)."""

    bands: int = 14
    """Bands of a signature; near duplicates have all rows of one band in common at least."""

    rows: int = 8
    """Minima in a band."""

    ngram: int = 5
    """Words of the n-grams that are hashed."""

    @property
    def minima(self) -> int:
        """Hashes of a document."""
        return self.bands * self.rows

    def probability(self, similarity: float) -> float:
        """Of being found, for two documents of this Jaccard similarity."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)

    @property
    def threshold(self) -> float:
        """The similarity at which half of the pairs are found."""
        return float((1 - 0.5 ** (1 / self.bands)) ** (1 / self.rows))


DEFAULT = MinHash()


class DedupOptions(CorpusOptions):
    """Documents that say the same."""

    dedup: Literal["minhash", "exact", "none"] = "minhash"
    """Which duplicates are dropped: near ones too, found by MinHash; exact ones; or none."""

    dedup_bands: int = Field(default=DEFAULT.bands, ge=1, le=100)
    """Bands of the MinHash signatures (datatrove: 14)."""

    dedup_rows: int = Field(default=DEFAULT.rows, ge=1, le=100)
    """Rows in a band of the MinHash signatures (datatrove: 8)."""

    dedup_ngram: int = Field(default=DEFAULT.ngram, ge=1, le=100)
    """Words of the n-grams that MinHash hashes (datatrove: 5)."""

    dedup_similarity: float = Field(default=0.6, ge=0, le=1)
    """Estimated Jaccard similarity of a near duplicate to the document that stays for it, at least; 0: whoever shares a band is a
    duplicate, and so is a duplicate's duplicate (connected components, as in datatrove)."""

    def minhash(self) -> MinHash | None:
        """The parameters of the search for near duplicates, if there is one."""
        return MinHash(self.dedup_bands, self.dedup_rows, self.dedup_ngram) if self.dedup == "minhash" else None
