"""`python -m tests.flows.ui.toy PLACE WHAT …`: a server of tests. It writes its number to
PLACE/server.

die CODE      ends at once
serve         waits; at SIGTERM it writes PLACE/saved and ends
stubborn      waits, whatever it is asked
parent        as serve, with a child in a session of its own that is a `serve` in PLACE/child
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn


def main(place: Path, what: str, *arguments: str) -> None:
    def stop(*_: object) -> NoReturn:
        (place / "saved").touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if what == "stubborn" else stop)
    place.mkdir(exist_ok=True)
    if what == "parent":
        command = [sys.executable, "-m", "tests.flows.ui.toy", str(place / "child"), "serve"]
        subprocess.Popen(command, start_new_session=True)
    (place / "new").write_text(str(os.getpid()))
    (place / "new").rename(place / "server")
    if what == "die":
        print("it cannot be", flush=True)
        sys.exit(int(arguments[0]))
    time.sleep(120)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
