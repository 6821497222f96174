"""A process that writes a spool as its standard input says, one JSON list a line; each is answered
by a line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cloze.flows.tracking.run_logger import close_spool
from cloze.flows.tracking.spool import Spool


def main() -> None:
    """Open a spool in the directory that the first argument names, for the server that the second
    one names.
    """
    spool = Spool(Path(sys.argv[1]), sys.argv[2])
    print(json.dumps(spool.path.name), flush=True)
    for line in sys.stdin:
        verb, *rest = json.loads(line)
        answer: object = None
        if verb == "start":
            spool.start_sender()
            spool.start_run(f"run {rest[0]}", run=rest[0])
        elif verb == "line":
            spool.line(rest[0], rest[1])
        elif verb == "end":
            spool.end_run(rest[0], rest[1])
        elif verb == "close":
            answer = close_spool(
                spool, 100.0
            )  # on a busy machine; waiting for another run would take as long as that one lives
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
