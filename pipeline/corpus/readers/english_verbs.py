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
    became began begins becomes went goes came comes took takes gave gives wrote writes fell falls grew grows knew knows sang drew threw
    flew blew rose rises chose chooses spoke speaks broke drove rode stole woke wore tore bore swore froze hid shook forgot forgives ate
    saw sees ran runs won wins lost loses held holds told tells sold bought brought brings thought thinks sought taught caught fought felt
    feels kept keeps slept left leaves met meets led leads fed bled bred sped lay lies stood stands understood found finds bound sent
    spent lent bent built dealt meant means heard hears paid pays said says made makes had got gets sat sits shot struck stuck sank sang
    swam drank shrank sprang hung dug spun swung lit slid put let hit contains consists includes requires remains provides serves exists
    occurs appears seems belongs extends lives dies plays works follows shows describes represents refers depends allows produces causes uses
    offers receives covers has does died lived moved arose awoke strove
    """.split()
)
_SUBJECTS = frozenset("he she it they we i you this that these those there who everyone everybody nobody none both all some many most".split())
_DETERMINERS = frozenset("the a an his her its their our my your this that these those each every some many most all both no several few".split())
# After one of these stands a noun or a participle, and no finite verb.
_NO_VERB_AFTER = (
    frozenset("of and or for with to in on at by from into as the a an about between under over per than more most".split()) | _DETERMINERS
) - frozenset("this that these those some many most all both".split())
_AFTER_PAST = frozenset(
    """
    the a an his her its their him it them himself herself itself to into from that this these those out up down off away back over on
    upon against through across around until when after before because slightly sharply steadily rapidly
    """.split()
)
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|\d[\d.,–-]*")
_FARTHEST = 14  # words in which the verb of a statement is looked for


def has_finite_verb(text: str) -> bool:
    """Whether one of the first words is a verb that makes a sentence of them: with a subject before it, and not as a participle."""
    words = _WORD.findall(text[:200])[:_FARTHEST]
    first = words[0].lower() if words else ""
    if len(words) > 1 and first in _SUBJECTS and words[1].islower() and words[1] not in _NO_VERB_AFTER:
        return first not in _DETERMINERS or first in ("this", "that") and words[1] in _AUXILIARIES | _FINITE or _finite(words)
    return _finite(words)


def _finite(words: list[str]) -> bool:
    led = bool(words) and words[0].lower() in _DETERMINERS | _SUBJECTS
    for place in range(1, len(words)):
        word = words[place]
        if not word.islower():
            continue
        before = words[place - 1].lower()
        if before in _NO_VERB_AFTER:
            continue
        if word in _AUXILIARIES or word in _FINITE:
            return True
        if len(word) > 4 and word.endswith("ed"):
            following = words[place + 1] if place + 1 < len(words) else ""
            if following in _AFTER_PAST or (led and following not in ("by", "with", "for", "as", "under")):
                return True
    return False
