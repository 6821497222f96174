"""What MLflow loads a model of ours with: `mlflow.pyfunc.load_model(…).predict([…])`. An MLmodel file names this module.

The model's data is a checkpoint directory as it was written: safetensors, JSON and a tokenizer, no pickle. MLflow is not imported here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from model import checkpoint
from model.use.classify import Classifier
from model.use.masks import Filler
from pipeline.core import storage
from pipeline.core.errors import UsageError

if TYPE_CHECKING:
    import pandas

TOP_K = 5
TEXT, PAIR, CHOICES = "text", "text_pair", "choices"  # columns of the input; for tasks on pairs, and for those that choose


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


class TextModel:
    """Labels texts, scores them, or chooses what follows them: one row a text."""

    def __init__(self, path: str) -> None:
        self._classifier = Classifier(path)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """The answer to each text.

        Args:
            model_input: strings, as a list, a Series, or a DataFrame's columns `text` and, for tasks on pairs, `text_pair`; for tasks
                that choose, `choices`, a list of endings a text.
            params: none are known.

        Returns:
            Columns `label` (of a choice, the ending) and `score`, its probability; of a task of numbers `score` alone, the number.

        Raises:
            UsageError: the task is about pairs, or chooses, and there are none; or the other way round.
        """
        import pandas

        del params
        found, (texts, pairs) = self._classifier, _columns(model_input)
        if found.answers == "scores":
            return pandas.DataFrame({"score": found.score(texts, pairs)})
        if found.answers == "choices":
            if not hasattr(model_input, "columns") or CHOICES not in model_input.columns:
                raise UsageError(f"the model chooses among endings (found no column {CHOICES}); give a DataFrame with one")
            rows = [
                (best["text"], best["score"]) for (best,) in found.choose(texts, [list(own) for own in model_input[CHOICES]], 1)
            ]
        else:
            rows = [(best["label"], best["score"]) for (best,) in found.classify(texts, pairs, 1)]
        return pandas.DataFrame(rows, columns=["label", "score"])


def _columns(model_input: Any) -> tuple[list[str], list[str] | None]:
    """The texts, and the second texts if there are any."""
    if hasattr(model_input, "columns"):
        names = [str(name) for name in model_input.columns]
        first = TEXT if TEXT in names else names[0]
        chosen = dict(zip(names, (model_input.iloc[:, place] for place in range(len(names))), strict=True))
        pairs = [str(text) for text in chosen[PAIR]] if PAIR in chosen else None
        return [str(text) for text in chosen[first]], pairs
    return [str(text) for text in ([model_input] if isinstance(model_input, str) else model_input)], None


def _load_pyfunc(data_path: str) -> MaskModel | TextModel:
    """MLflow's entry point. Args: data_path: a checkpoint directory.

    Raises:
        UsageError: the checkpoint neither fills masks nor labels texts.
        DataError: it is damaged.
    """
    path = checkpoint.resolve(data_path)
    content = json.loads(storage.read_text(storage.join(path, checkpoint.CONFIG)))
    if content.get("task") is not None:
        return TextModel(path)
    if "masked_lm" in content["heads"]:
        return MaskModel(path)
    raise UsageError(
        f"{path} neither fills masks nor labels texts (it has {', '.join(content['heads'])}); use another checkpoint"
    )
