"""SST-2: is a phrase of a film review positive (1) or negative (0)?

The format is that of GLUE's archive (Wang et al. 2019): train.tsv and dev.tsv with the columns `sentence` and
`label`, test.tsv with `index` and `sentence`. Any two-class set in this format can be fine-tuned on.
Its score is accuracy (Wang et al. 2019, table 1).
"""

from __future__ import annotations

from model.tasks.classification import Classification
from model.tasks.tsv import TextFiles

TASK = Classification("sst2", TextFiles(text="sentence", label="label", labels=("0", "1")))
