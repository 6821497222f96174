"""One case in a process of its own: `python -m benchmarks.data.child module:function JSON`; its
last line is what it found.
"""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    found = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
