"""What a run says of its spool when it closes it: nothing, or which records MLflow lacks, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

from cloze.flows.tracking.run_logger import close_spool
from cloze.flows.tracking.spool import Spool


class Closed:
    """A spool that has been sent, or waits, with records that were refused."""

    failures: tuple[OSError, ...] = ()  # of the disk

    def __init__(self, path: Path, refused: dict[str, int]) -> None:
        self.path, self.uri, self._refused = path, "http://user:secret@host:5000", refused

    def close(self, seconds: float) -> bool:
        del seconds
        return not self.path.exists()

    def refused(self) -> Counter[str]:
        return Counter(self._refused)


def said(path: Path, **refused: int) -> list[str]:
    return close_spool(cast(Spool, cast(Any, Closed(path, refused))))


def test_what_waits_and_what_was_refused_are_two_sentences(tmp_path: Path) -> None:
    (tmp_path / "waits").touch()
    waits, refused = said(tmp_path / "waits", late=1)
    assert f"the rest is kept in {tmp_path / 'waits'} and sent with the next run" in waits
    assert "secret" not in waits
    assert refused.startswith("MLflow rejected 1 record (the first: late)")
