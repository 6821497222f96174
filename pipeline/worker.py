"""`python -m cloze.pipeline.worker JOB`: a data stage in its own process."""

from __future__ import annotations

import logging
import os
import sys

from cloze.core.arrow import spare_pandas
from cloze.core.stages.worker import main

if __name__ == "__main__":
    spare_pandas()
    code = main("cloze.pipeline")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # threads that wait for a lost worker or job server would delay the exit by minutes
    os._exit(code)
