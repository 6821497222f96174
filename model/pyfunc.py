"""What MLflow loads a model of ours with: `mlflow.pyfunc.load_model(…).predict([…])`. An MLmodel file names this module.

The model's data is a checkpoint directory as it was written: safetensors, JSON and a tokenizer, no pickle. MLflow is not imported here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from model import checkpoint
from model.tasks.labeller import Labeller
from model.use.masks import Filler
from pipeline.core import storage
from pipeline.core.errors import UsageError

if TYPE_CHECKING:
    import pandas

TOP_K = 5
TEXT, PAIR = "text", "text_pair"  # columns of the input; the second one for tasks on pairs


class MaskModel:
    """Fills masks: one row a candidate."""

    def __init__(self, path: str) -> None:
        self._filler = Filler(path)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """The candidates of each mask of each text, best first.

        Args:
            model_input: strings with [MASK], as a list, a Series, or a DataFrame's column `text`.
            params: `top_k`, candidates a mask.

        Returns:
            Columns `text` (the number of the text, from 0), `mask` (the number of the mask in it), `token`, `score` (its probability)
            and `sequence` (the text with the token in place).

        Raises:
            UsageError: a text has no mask, or is longer than the model reads.
        """
        import pandas

        top_k = int((params or {}).get("top_k", TOP_K))
        rows = [
            {"text": number, "mask": place, **candidate}
            for number, text in enumerate(_columns(model_input)[0])
            for place, candidates in enumerate(self._filler.fill(text, top_k))
            for candidate in candidates
        ]
        return pandas.DataFrame(rows, columns=["text", "mask", "token", "score", "sequence"])


class LabelModel:
    """Labels texts: one row a text."""

    def __init__(self, path: str) -> None:
        self._labeller = Labeller(path)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """The likeliest label of each text and its probability: columns `label` and `score`.

        Args:
            model_input: strings, as a list, a Series, or a DataFrame's columns `text` and, for tasks on pairs, `text_pair`.
            params: none are known.
        """
        import pandas

        del params
        return pandas.DataFrame(self._labeller.label(*_columns(model_input)), columns=["label", "score"])


def _columns(model_input: Any) -> tuple[list[str], list[str] | None]:
    """The texts, and the second texts if there are any."""
    if hasattr(model_input, "columns"):
        names = [str(name) for name in model_input.columns]
        first = TEXT if TEXT in names else names[0]
        chosen = dict(zip(names, (model_input.iloc[:, place] for place in range(len(names))), strict=True))
        pairs = [str(text) for text in chosen[PAIR]] if PAIR in chosen else None
        return [str(text) for text in chosen[first]], pairs
    return [str(text) for text in ([model_input] if isinstance(model_input, str) else model_input)], None


def _load_pyfunc(data_path: str) -> MaskModel | LabelModel:
    """MLflow's entry point. Args: data_path: a checkpoint directory.

    Raises:
        UsageError: the checkpoint neither fills masks nor labels texts.
        DataError: it is damaged.
    """
    path = checkpoint.resolve(data_path)
    content = json.loads(storage.read_text(storage.join(path, checkpoint.CONFIG)))
    if content.get("task") is not None:
        return LabelModel(path)
    if "masked_lm" in content["heads"]:
        return MaskModel(path)
    raise UsageError(
        f"{path} neither fills masks nor labels texts (it has {', '.join(content['heads'])}); use another checkpoint"
    )
