"""Top-level files of the repository that an installed wheel needs; `setup.py` copies them here."""

from pathlib import Path

FILES = ("prefect.yaml", "constraints.txt", "samples")  # as in `setup.py`
_HERE = Path(__file__).parent
_CHECKOUT = Path(__file__).resolve().parents[2]
DATA = _CHECKOUT if (_CHECKOUT / "prefect.yaml").is_file() else _HERE
