"""`--explain`: every step that a document went through, told as it was."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.flows.views.inspection import page
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.explain import diff_paragraphs, explain
from tests.pipeline.corpus.corpora import make, prose, rows, write_jsonl
from tests.slices import few


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    texts = {
        "Whole": prose(1) + "\n\nWith a soft\u00adhyphen  and   blanks in it.",
        "Longer": prose(1)
        + "\n\nWith a soft hyphen and blanks in it.\n\nAnd one line that makes it longer.",
        "Short": "Too short.",
        "Alone": prose(5),
        "Asked": prose(6)
        + (
            "\n\nHere stands the question of the task that nobody may read in the corpus before it "
            "is asked."
        ),
    }
    path = tmp_path_factory.mktemp("explain") / "a.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": name.lower(), "title": name, "text": text}) + "\n"
            for name, text in texts.items()
        )
    )
    return path


def config(source, **settings):
    return parse_config(
        CorpusConfig, {"sources": [{"kind": "jsonl", "path": str(source)}], **settings}, "corpus"
    )


def test_a_copy_names_what_stays(source):
    found = explain(config(source), "WHOLE")
    assert (found.outcome, found.split) == ("near_duplicate", "")
    assert (found.duplicate_of.title, found.duplicate_of.id) == ("Longer", "jsonl/a.jsonl/longer")
    assert found.duplicate_of.similarity > 0.7
    clean = next(step for step in found.steps if step.name == "clean")
    assert any(
        sign == "-" and "\u00ad" in text for change in clean.changes for sign, text in change.pieces
    )
    assert found.sentences[-1] == "With a softhyphen and blanks in it."
    other = explain(config(source), "jsonl/a.jsonl/longer")
    assert (other.outcome, other.duplicates_in_all, other.duplicates[0].title) == (
        "kept",
        1,
        "Whole",
    )


def test_a_drop_names_its_step(source):
    found = explain(config(source), "short")
    assert (found.outcome, found.steps[-1].reason, found.sentences) == (
        "too_short",
        "too_short",
        [],
    )
    kept = explain(config(source, minimum_characters=0, minimum_words=0, dedup="none"), "short")
    assert kept.outcome == "kept"
    assert kept.split in ("train", "heldout")


def test_text_of_a_task_is_shown(source, tmp_path):
    task = tmp_path / "dev.txt"
    task.write_text(
        "Here stands the question of the task that nobody may read in the corpus before it is "
        "asked.\n"
    )
    found = explain(config(source, decontaminate=str(task)), "Asked")
    assert found.outcome == "contaminated"
    assert found.steps[-1].name == "decontaminate"
    assert found.steps[-1].detail.startswith("dev.txt: “here stands the question of the task")


CONFIGS = {
    "default": {},
    "web": {"preset": "web", "c4_end_marks": False, "minimum_words": 3},
    "auto": {"language": "auto", "minimum_characters": 10},
    "some languages": {"language": "auto", "keep_languages": ["de", "fr"]},
    "personal data": {
        "mask_personal_data": ["email", "phone", "ip"],
        "minimum_characters": 0,
        "minimum_words": 1,
    },
    "decontaminate": {"decontaminate": True},
    "paragraphs": {
        "decontaminate": True,
        "decontaminate_unit": "paragraph",
        "normalize_unicode": "NFKC",
    },
    "no duplicates": {"dedup": "none", "minimum_letters": 0},
    "exact": {"dedup": "exact"},
}
MORE = {
    "English": "\n".join(
        (
            "The river bends to the north of the town, and people have walked along it for years.",
            "In the summer of that year the miller had the wheel taken out and mended with new "
            "wood.",
            "He told everybody who came by that it would turn better than it had in all the time "
            "before.",
            "The children did not believe him, because they have seen the wheel stand still in "
            "every drought.",
        )
    ),
    "Write": "Write to a.b@example.org or call +1 202-456-1111, said the note on the door. "
    + prose(7),
    "Deutsch": (
        "Der Fluss biegt im Norden der Stadt nach Osten ab, und seit Jahren gehen die Leute an ihm "
        "entlang. "
    )
    * 4,
    "Twice": "\n".join(["This very line stands here two times."] * 2) + "\n\n" + prose(8),
    "Menu": "Home | About | Contact\n\nWe use cookies on this website.\n\n" + prose(9),
    "Numbers": "12345 67890 " * 60,
}


@pytest.mark.parametrize(
    "name", few(CONFIGS, "default", "web", "auto", "personal data", "paragraphs")
)
def test_it_says_what_the_stage_does(source, tmp_path, name):
    """Under every config: kept or dropped, for the same reason, with the same sentences, in the
    same split.
    """
    path, task, settings = tmp_path / "a.jsonl", tmp_path / "dev.txt", dict(CONFIGS[name])
    texts = {
        title: {"id": title.lower(), "title": title, "text": text} for title, text in MORE.items()
    }
    path.write_text(source.read_text() + "".join(json.dumps(one) + "\n" for one in texts.values()))
    task.write_text(
        "Here stands the question of the task that nobody may read in the corpus before it is "
        "asked.\n"
    )
    if settings.get("decontaminate"):
        settings["decontaminate"] = [str(task)]
    result = make(
        tmp_path / "out", f"jsonl={path}", keep_dropped=True, heldout_fraction=0.4, **settings
    )
    kept = {row["title"]: row for row in rows(result)}
    dropped = {
        row["title"]: row for row in rows(result, "dropped/*.arrow") if row["scope"] == "document"
    }
    for title in ("Whole", "Longer", "Short", "Alone", "Asked", *MORE):
        found = explain(config(path, heldout_fraction=0.4, **settings), title)
        assert (title in kept) != (title in dropped)
        if title in kept:
            assert (found.outcome, found.split, found.sentences) == (
                "kept",
                kept[title]["split"],
                kept[title]["sentences"],
            )
        else:
            assert (found.outcome, found.split) == (dropped[title]["reason"], "")
            if found.steps[-1].reason:
                assert found.steps[-1].name == dropped[title]["step"]


def test_a_masked_id_is_found_again(tmp_path):
    """The masks change the id, and the id decides about the split and names the duplicates."""
    path = tmp_path / "a.jsonl"
    records = [{"id": f"{n}.b@example.org", "title": f"T{n}", "text": prose(5)} for n in range(2)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = {"mask_personal_data": ["email"], "heldout_fraction": 0.5}
    (kept,) = rows(make(tmp_path / "out", f"jsonl={path}", **settings))
    found = [explain(config(path, **settings), f"T{n}") for n in range(2)]
    assert {(one.title == kept["title"], one.split, one.outcome) for one in found} == {
        (True, kept["split"], "kept"),
        (False, "", "exact_duplicate"),
    }


def test_what_has_no_text_is_told_by_document_and_not_by_line(tmp_path):
    """Lines that readers drop are no documents: the sentence names the documents alone."""
    page = "<page><title>{}</title><ns>0</ns><id>{}</id><revision><text>{}</text></revision></page>"
    article = "One is a thing.\n\n[[File:x.jpg|thumb|A picture]]\n\n== See also ==\n* [[Two]]"
    pages = [("One", article), ("Two", "#REDIRECT [[One]]"), ("Three", "#REDIRECT [[One]]")]
    path = tmp_path / "dump.xml"
    text = "".join(
        page.format(title, number, body) for number, (title, body) in enumerate(pages, 1)
    )
    path.write_text(f"<mediawiki xml:lang='en'>{text}</mediawiki>")
    given = {"sources": [{"kind": "wikipedia", "path": str(path)}]}
    with pytest.raises(UsageError) as error:
        explain(parse_config(CorpusConfig, given, "corpus"), "Nowhere")
    assert "among the 3 that were read (redirect 2 have no text to look at)" in str(error.value)


def test_duplicates_are_shown_on_both_sides(tmp_path):
    """Of what is dropped its original, and of what is kept all that was dropped for it."""
    path = write_jsonl(tmp_path / "a.jsonl", *[prose(1)] * 3, prose(2))
    found = {title: explain(config(path), f"Title {title}") for title in range(4)}
    (kept,) = (one for one in found.values() if one.duplicates_in_all)
    (dropped, _) = (one for one in found.values() if one.duplicate_of)

    def lines(explanation):
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(page(asdict(explanation)))
        return [line.strip() for line in console.export_text().splitlines()]

    said = lines(kept)
    place = said.index("2 documents dropped in its favour:")
    assert [line.split()[:2] for line in said[place + 1 : place + 3]] == [
        other.title.split() for other in kept.duplicates
    ]
    assert not any("a duplicate of" in line for line in said)
    assert any(line.startswith(f"a duplicate of {kept.title}") for line in lines(dropped))
    both = replace(kept, duplicate_of=dropped.duplicate_of)
    assert {f"a duplicate of {kept.title}", said[place]} <= {
        line.split("  ")[0] for line in lines(both)
    }
    many = replace(kept, duplicates_in_all=9)
    assert "… 7 more" in lines(many)
    assert not any(line.startswith("duplicates") for line in lines(found[3]))


def test_no_such_document(source):
    with pytest.raises(
        UsageError,
        match=r"no document of the title or id 'Longest' among the 5 .*nearest titles: 'Longer'",
    ):
        explain(config(source), "Longest")


@given(
    st.lists(st.text(alphabet="ab ", max_size=8), max_size=6),
    st.lists(st.text(alphabet="ab ", max_size=8), max_size=6),
)
@example(before=[" ", ""], after=["a ", ""])  # all of a paragraph is the end that stayed
def test_changes_tell_every_difference(before, after):
    found = diff_paragraphs(before, after)
    assert (found == []) == (before == after)
    for change in found:
        if change.kind == "changed":
            assert (
                "".join(text for sign, text in change.pieces if sign in "=-")
                in before[change.paragraph - 1]
            )
            assert any(sign in "+-" for sign, _ in change.pieces)


def test_a_change_is_short():
    long = "word " * 400
    (found,) = diff_paragraphs([long + "here it was." + long], [long + "here it is." + long])
    assert [(sign, text) for sign, text in found.pieces if sign in "+-"] == [
        ("-", "was"),
        ("+", "is"),
    ]
    assert sum(len(text) for _, text in found.pieces) < 150
    (found,) = diff_paragraphs(["x" * 30_000], ["y" * 30_000])
    assert sum(len(text) for _, text in found.pieces) < 150
