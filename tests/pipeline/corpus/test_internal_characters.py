"""Characters that readers use internally do not drop the text of a source that holds them."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloze.pipeline.corpus.document import INTERNAL, Document, sanitize_document
from cloze.pipeline.corpus.steps.chain import TextConfig, build_steps, run_steps
from tests.pipeline.corpus.readers.made import HEAD, page, response
from tests.pipeline.corpus.readers.test_tables import read

PROSE = "The mill stands by the river and it is old. People come from far to see it. "
NONCHARACTERS = "\ufdd0\ufdef\uffff\ufffe\U0001ffff\ue000\uf8ff\U000f0000\ufffc\ufffd\x00\x1a"
STEPS = build_steps(TextConfig(minimum_characters=0, minimum_words=0, normalize_unicode="none"))


def cleaned(document: Document) -> list[str]:
    result = run_steps(sanitize_document(document), STEPS)
    assert result.sentences is not None
    assert not result.removed
    return result.sentences.texts


def write(directory: Path, kind: str, text: str) -> Path:
    if kind == "parquet":
        pq.write_table(pa.table({"text": [text]}), directory / "a.parquet")
        return directory / "a.parquet"
    markup = escape(text)
    data = {
        "text": text,
        "books": f"# One\n\n{text}",
        "babylm": text,
        "jsonl": json.dumps({"text": text}),
        "html": f"<html><body><main><p>{markup}</p></main></body></html>",
        "wikipedia": f"{HEAD}{page('A', markup)}</mediawiki>",
        "wikiextractor": f'<doc id="1" url="https://en.wikipedia.org/?curid=1" title="A">\nA\n\n'
        f"{text}\n</doc>\n",
    }
    path = directory / "a"
    path.write_text(data.get(kind, ""))
    if kind == "warc":
        path.write_bytes(response(1, data["html"]))
    return path


@pytest.mark.parametrize("character", [*INTERNAL, "".join(INTERNAL)])
@pytest.mark.parametrize(
    "kind",
    ["text", "books", "babylm", "jsonl", "parquet", "html", "wikipedia", "wikiextractor", "warc"],
)
def test_no_sentence_is_dropped(tmp_path: Path, kind: str, character: str) -> None:
    text = PROSE * 9 + f"There is one {character} sign in this sentence, and it stays. " + PROSE * 3
    (document,), _ = read(kind, write(tmp_path, kind, text))
    sentences = cleaned(document)
    assert len(sentences) == 25
    (held,) = [sentence for sentence in sentences if sentence.startswith("There")]
    assert held.startswith("There is one \ufffd")


@pytest.mark.parametrize("reference", ["&#xE0FE;", "&#57598;", "&#xe0ff;", "&#x0E0FD;"])
@pytest.mark.parametrize("kind", ["html", "wikipedia", "warc"])
def test_references_to_them_are_text_too(tmp_path: Path, kind: str, reference: str) -> None:
    text = PROSE * 9 + "There is one @ sign in this sentence, and it stays. " + PROSE * 3
    path = write(tmp_path, kind, text)
    data = path.read_bytes().replace(b"@", reference.encode())
    if kind == "wikipedia":
        data = data.replace(b"&#", b"&amp;#")
    if kind == "warc":
        markup = f"<html><body><main><p>{text.replace('@', reference)}</p></main></body></html>"
        data = response(1, markup)
    path.write_bytes(data)
    (document,), _ = read(kind, path)
    assert len(cleaned(document)) == 25


@pytest.mark.parametrize("character", NONCHARACTERS)
def test_other_characters_without_a_meaning_drop_nothing(character: str) -> None:
    text = f"{PROSE}There is one {character} sign. {PROSE}"
    document = Document(id="a", source="jsonl", title=character, paragraphs=(text,))
    assert len(cleaned(document)) == 5


def test_plain_text_about_a_reference_is_kept_as_it_is() -> None:
    text = "The entity &#xE0FE; is written so."
    document = Document(id="a", source="text", title="", paragraphs=(text,))
    assert sanitize_document(document) is document
