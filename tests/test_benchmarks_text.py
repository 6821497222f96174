"""The scorecard of the text counts what it says."""

from __future__ import annotations

from benchmarks.text_measures import common_words, faults

PAGE = (
    "The mill{{x}}stands [[here]].\n\n* The first item of this list is long enough\n* The second item of this list is long, too\n\n"
    + "It is {{convert|1200|m}} long and it has been so since the day on which it was built of stone by people of the town, "
    * 3
    + "\n== References ==\n* A book that nobody has to keep in the text of it\n* Another book that nobody has to keep"
)


def test_faults_are_counted():
    good = [
        "The mill stands here.",
        "The first item of this list is long enough The second item of this list is long, too",
        "It is 1,200 m long.",
    ]
    found = faults(PAGE, good, good, set())
    assert (found.markup, found.glued, found.holes, found.lists, found.half_lists) == (0, 0, 0, 1, 0)
    assert (found.numbers, found.lost_numbers, found.torn) == (3, 0, 1)
    bad = ["The millstands [[here]] of .", "The first item of this list is long enough", "it is long."]
    found = faults(PAGE, bad, bad, set())
    assert (found.markup, found.glued, found.lists, found.half_lists, found.lost_numbers, found.torn) == (2, 1, 1, 1, 3, 2)
    assert found.holes >= 1


def test_words_of_three_pages_are_common():
    assert common_words({"a": "one two", "b": "one two", "c": "one"}) == {"one"}
