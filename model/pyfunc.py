"""MLflow's pyfunc loader: `mlflow.pyfunc.load_model(…).predict([…])`.

MLmodel files name this module.

The model's data is a checkpoint directory: safetensors, JSON and a tokenizer, no pickle. This
module does not import MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from cloze.core.errors import UsageError
from cloze.model.use.verb import PREDICTORS, verb_of

if TYPE_CHECKING:
    import pandas

    from cloze.model.use.fill_mask import FillMaskPipeline

Params = Mapping[str, Any]
TOP_K = 5
TEXT, CHOICES = "text", "choices"  # input columns; the second one has a list per text


@dataclass(frozen=True)
class ServedModel:
    """A loaded model, as `mlflow.pyfunc` calls it.

    Attributes:
        pipeline: `Predictor.pipeline` of a verb, on the checkpoint.
        answer: maps pipeline, input and parameters to the answer; `Predictor.served` of a verb.
            `Predictor.columns` describes its columns to MLflow.
    """

    pipeline: Any
    answer: Callable[[Any, Any, Params], pandas.DataFrame]

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return one row per answer.

        Args:
            model_input: strings, as a list, an array or a Series; or a table's column `text`, where
                a table is a DataFrame, a dict of columns or a list of dicts. Some models read
                other columns, see their `answer`; all others are ignored.
            params: see `answer`; others are ignored.

        Raises:
            UsageError: the model cannot read the input, such as for a missing value.
        """
        return self.answer(self.pipeline, model_input, params or {})


def fill_masks(pipeline: FillMaskPipeline, model_input: Any, params: Params) -> pandas.DataFrame:
    """Return the candidates of each mask of each text, best first.

    Args:
        model_input: strings with [MASK].
        params: `top_k`, candidates per mask.

    Returns:
        Columns `text` (index of the text, from 0), `mask` (index of the mask in it), `token`,
        `score` (its probability) and `sequence` (the text with the token filled in).

    Raises:
        UsageError: a text has no mask, or is longer than the model's maximum length.
    """
    rows = [
        {"text": number, "mask": mask, **candidate}
        for number, text in enumerate(column_texts(input_table(model_input)))
        for mask, candidates in enumerate(pipeline.fill(text, int(params.get("top_k", TOP_K))))
        for candidate in candidates
    ]
    return answer_table(rows, "text", "mask", "token", "score", "sequence")


def answer_table(rows: list[dict[str, Any]], *columns: str) -> pandas.DataFrame:
    """Return an answer: rows by name of the column, and the columns in order."""
    import pandas

    return pandas.DataFrame(rows, columns=list(columns))


def input_table(model_input: Any) -> pandas.DataFrame:
    """Return the input as a table: texts alone are its column `text`.

    Raises:
        UsageError: an array has several columns without names, or a table's columns differ in size.
    """
    import pandas

    if isinstance(model_input, pandas.DataFrame):
        # MLflow makes such a table of a list, and Spark of a column.
        unnamed = list(model_input.columns) in ([0], ["0"])
        return model_input.set_axis([TEXT], axis=1) if unnamed else model_input
    if isinstance(model_input, Mapping):
        try:
            return pandas.DataFrame({name: _listed(own) for name, own in model_input.items()})
        except ValueError as error:
            raise UsageError(f"the input is no table ({error}); give each column as many") from None
    rows = _listed(model_input)
    if rows and all(isinstance(row, Mapping) for row in rows):
        return pandas.DataFrame(rows)
    rows = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in rows]
    return pandas.DataFrame({TEXT: rows})


def _listed(value: Any) -> list[Any]:
    """Return a list of a list, an array, a Series or one value."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, list | tuple | set) else [value]


def column_values(table: pandas.DataFrame, name: str) -> list[Any]:
    """Return the values of a column.

    Raises:
        UsageError: it does not exist, exists twice, or a value is missing or blank.
    """
    import pandas

    if (count := list(table.columns).count(name)) != 1:
        found = ", ".join(map(str, table.columns)) or "none"
        raise UsageError(
            f"the model reads the column {name}, and the input has {count or 'none'} of that name "
            f"(its columns: {found}); name one {name}"
        )
    values = [_listed(value) if name == CHOICES else value for value in table[name]]
    for row, value in enumerate(values):
        parts = value if name == CHOICES else [value]
        if any(not pandas.api.types.is_scalar(part) for part in parts):
            raise UsageError(f"row {row} (from 0): the {name} is no text; write one text a row")
        if any(pandas.isna(part) or not str(part).strip() for part in parts):
            raise UsageError(
                f"row {row} (from 0): the {name} is missing or blank; write it, or leave the row "
                f"out"
            )
    return values


def column_texts(table: pandas.DataFrame, name: str = TEXT) -> list[str]:
    """Return the texts of a column, which is there in every row; raises as `column_values`."""
    return [str(value) for value in column_values(table, name)]


def _load_pyfunc(data_path: str) -> ServedModel:
    """Load the model for a checkpoint directory; MLflow's entry point.

    Args:
        data_path: a checkpoint directory.

    Raises:
        UsageError: no model here serves the checkpoint's heads.
        DataError: the checkpoint is damaged.
    """
    verb = PREDICTORS.find(verb_of(data_path))
    return ServedModel(resolve_name(verb.pipeline)(data_path), resolve_name(verb.served))
