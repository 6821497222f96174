"""Which templates show nothing, judged by their names: the beginning counts, or the whole end."""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.readers.encyclopedia.templates import is_pronunciation, is_silent

BEGINNINGS = (
    "cite web|vcite book|sfnp|harvnb|efn|refn|notelist|reflist|refbegin|refend|ref label|"
    "infobox person|taxobox|navbox x|pp-move|use dmy dates|main|main article|see also|"
    "authority control|#tag:ref|flagicon|flagdeco|subst:x|defaultsort|displaytitle|webarchive|"
    "cita web|citar web|cytuj|cituj|ref-en|portal bar|refimprove|inflation-fn|inflation/fn|"
    "audio icon|audio-icon"
).split("|")
ENDINGS = (
    "page needed|x inline|audio x icon|better source|better source?|x span|x required|x begin|"
    "x end|history stub|x box|x-inline|bio-stub|who?|何？|من؟|failed verification|verify source|"
    "a citation b|a footnote b|is disputed x"
).split("|")


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_name_is_known_by_its_beginning_and_not_in_its_middle(name: str) -> None:
    assert is_silent(name, [])
    assert not is_silent(f"the{name}y", [])
    assert not is_silent(f"the {name}y", [])


@pytest.mark.parametrize("name", ["cit", "re", "refer", "ref", "useful", "mainland", "portal",
    "inflation", "audio", "ref-english"])  # fmt: skip
def test_names_that_only_look_like_them(name: str) -> None:
    assert not is_silent(name, [])


@pytest.mark.parametrize("name", ENDINGS)
def test_a_name_is_known_by_its_end(name: str) -> None:
    assert is_silent(name, [])
    if not any(word in name for word in ("verif", "citation", "footnote", "disputed")):
        assert not is_silent(f"{name}y", [])


@pytest.mark.parametrize("word", "date datum fecha дата تاريخ data".split())
def test_a_date_is_typical_of_requests_wherever_it_stands(word: str) -> None:
    for rest in ([f"{word}=May 2020"], ["a", f" {word} = May 2020"]):
        assert is_silent("anything", rest)
    for rest in ([], [word], [f"{word}s=1"], [f"a {word}=1"], ["date of birth=1"]):
        assert not is_silent("anything", rest)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("ipa-fr", True), ("ipac-en", True), ("lfe-x", True), ("xpa-ka", True),
    ("ipad-mini", False), ("x ipa-fr", False), ("lang-fr", False), ("ipax", False)],
)  # fmt: skip
def test_a_pronunciation_is_known_by_its_name(name: str, is_one: bool) -> None:
    assert is_pronunciation(name) is is_one
