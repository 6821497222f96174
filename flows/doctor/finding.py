"""What a check finds, and how findings are mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor's.

    Attributes:
        check: what was looked at.
        found: what is there.
        ok: whether it is as it should be.
        fix: what to do if it is not.
        mend: does it; None: that is up to the user.
        fixed: `mend` was called, and the check finds it no more.
        failed: why `mend` could not do it.
    """

    check: str
    found: str
    ok: bool = True
    fix: str = ""
    mend: Callable[[], object] | None = None
    fixed: bool = False
    failed: str = ""

    def row(self) -> dict[str, Any]:
        """The finding for `--json`."""
        row = {"check": self.check, "found": self.found, "ok": self.ok}
        if self.ok:
            return row
        return {
            **row,
            "fix": self.fix,
            "can_fix": self.mend is not None,
            "fixed": self.fixed,
            **({"failed": self.failed} if self.failed else {}),
        }


Check = Callable[[], Iterable[Finding]]


def examine(check: Check, mend: bool) -> list[Finding]:
    """What a check finds; with `mend`, after what can be mended was."""
    found = list(check())
    wrong = [finding for finding in found if not finding.ok and finding.mend is not None]
    if not mend or not wrong:
        return found
    failures: dict[tuple[str, str], str] = {}
    for finding in wrong:
        assert finding.mend is not None
        try:
            finding.mend()
        except Exception as error:
            failures[finding.check, finding.found] = " ".join(str(error).split())[:200] or type(error).__name__
    again = list(check())
    still = {(finding.check, finding.found) for finding in again if not finding.ok}
    mended = [replace(finding, fixed=True) for finding in wrong if (finding.check, finding.found) not in still]
    return [*mended, *(replace(finding, failed=failures.get((finding.check, finding.found), "")) for finding in again)]
