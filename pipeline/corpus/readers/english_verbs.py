"""Whether a few English words are a sentence or a heading: a sentence has a finite verb, and something before it.

Headings are told from short sentences by this alone; both errors are measured by benchmarks/text_scorecard.py on the headings and the
short sentences of real articles.
"""

from __future__ import annotations

import re

_AUXILIARIES = frozenset(
    """
    is are was were am has had have does did do be been being can could will would may might must shall should cannot isn't aren't wasn't
    weren't hasn't hadn't haven't doesn't didn't don't can't couldn't won't wouldn't shouldn't isn’t aren’t wasn’t weren’t hasn’t hadn’t
    haven’t doesn’t didn’t don’t can’t couldn’t won’t wouldn’t
    """.split()
)
_FINITE = frozenset(
    """
    became began begins becomes went goes came comes took takes gave gives wrote writes fell falls grew grows knew knows sang drew
    threw flew blew chose chooses speaks broke drove rode woke wore tore bore swore froze hid shook forgot forgives ate sees ran
    won wins lost loses held holds told tells sold bought brought brings thinks sought caught fought feels kept keeps slept met
    meets leads fed bled bred sped lay stood stands understood sent spent lent bent dealt meant heard hears paid pays said made
    makes had got gets sat sits stuck sank swam drank shrank sprang hung dug spun swung slid contains consists includes requires
    remains provides serves exists occurs appears seems belongs extends dies describes represents refers allows receives has does
    died lived moved arose awoke strove opened ended happened occurred appeared arrived started returned retired remained resigned
    agreed graduated finished debuted premiered continued joined married attended served worked studied scored explains asks
    believes agrees continues proves compete occupies forbids comprises constitutes protests decides moves
    """.split()
)
# Nouns or participles as often as verbs: these are taken for verbs where what follows is what follows a verb.
_AMBIGUOUS = frozenset(
    """
    works causes uses lives plays means shows covers offers lies runs thought left built set taught cut hit put rose found felt
    saw let lit shot struck cast led follows produces depends says wound bound ground spoke stole rises leaves finds deals
    """.split()
)
_PERSONS = frozenset("he she they we".split())
_SUBJECTS = frozenset(
    """
    he she it they we i you this that these those there who everyone everybody nobody none both all some many most he's she's it's they're
    there's he’s she’s it’s
    """.split()
)
_DETERMINERS = frozenset(
    "the a an his her its their our my your this that these those each every some many most all both no several few".split()
)
# After one of these stands a noun or a participle, and no finite verb.
_NO_VERB_AFTER = (
    frozenset("of and or for with to in on at by from into as the a an about between under over per than more most".split())
    | _DETERMINERS
) - frozenset("this that these those some many most all both".split())
_AFTER_PAST = frozenset(
    """
    the a an his her its their him it them himself herself itself to in at into from that this these those out up down off away back over on upon
    against north south east west northwest northeast southwest southeast through across around until when after before
    because slightly sharply steadily rapidly
    """.split()
)
_AFTER_PRESENT = frozenset("the a an his her its their him it them himself herself itself that".split())
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|\d[\d.,–-]*")
_FARTHEST = 14  # words in which the verb of a statement is looked for


def has_finite_verb(text: str) -> bool:
    """Whether one of the first words is a verb that makes a sentence of them: with a subject before it, and not as a participle."""
    words = _WORD.findall(text[:200])[:_FARTHEST]
    first = words[0].lower() if words else ""
    if len(words) > 1 and first in _SUBJECTS and ("'" in first or "’" in first):
        return True
    if len(words) > 1 and first in _SUBJECTS and words[1].islower() and words[1] not in _NO_VERB_AFTER:
        return first not in _DETERMINERS or (first in ("this", "that") and words[1] in _AUXILIARIES | _FINITE) or _finite(words)
    return _finite(words)


def _finite(words: list[str]) -> bool:
    led = bool(words) and words[0].lower() in _DETERMINERS | _SUBJECTS
    for place in range(1, len(words)):
        word = words[place]
        if not word.islower():
            continue
        before = words[place - 1].lower()
        if before in _PERSONS and word not in _NO_VERB_AFTER:
            return True
        if before in _NO_VERB_AFTER:
            continue
        if word in _AUXILIARIES or word in _FINITE:
            return True
        following = words[place + 1] if place + 1 < len(words) else ""
        if word in _AMBIGUOUS and (following in _AFTER_PAST or (led and place > 1 and following not in ("of", ""))):
            return True
        if len(word) > 4 and word.endswith("ed"):
            if led and following not in ("by", "with", "for", "as", "under"):
                return True
            if following in _AFTER_PAST and not (place == 1 and before[-1] == "s"):  # but: States admitted to the Union
                return True
        elif (
            len(word) > 3
            and word[-1] == "s"
            and word[-2] not in "su"
            and (following in _AFTER_PRESENT or (led and place > 1 and following in _AFTER_PAST))
        ):
            return True
    return False
