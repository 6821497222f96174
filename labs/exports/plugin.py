"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="exports",
    summary="Further forms of `export`: ONNX files of a model, Croissant metadata of data.",
    rows={
        "export_forms": {
            "onnx": Row("cloze.labs.exports.onnx:FORM"),
            "croissant": Row("cloze.labs.exports.croissant:FORM"),
        }
    },
)
