"""Templates that add nothing to a sentence: references, notes, doubts of the editors, icons. A sentence is whole without them.

Whatever is neither here nor among the rules (pipeline/corpus/readers/wikipedia/templates.py) and stands inside a sentence leaves a hole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_NAMES = frozenset(
    name.replace("_", " ")
    for name in """
    rp refn ref efn sfn sfnp sfnm sfnref fn cn fact who whom when which where why full page pages dubious vague peacock weasel cref cnote nb r hsp
    specify clarify clarifyme clarification examples example quantify chronology anchor anchors flagicon flagdeco flag_icon
    flagicon_image cite_doi cite_pmid oclc issn isbn doi pmid pmc arxiv hdl bibcode wayback webarchive dead_link deadlink cbignore update relevance
    or pov undue lopsided synth copyedit awkward elucidate huh what by_whom according_to_whom from_whom like_whom compared_to? how how? incomprehensible
    unreliable_source? verify_credibility verify_source verification_needed not_in_source not_in_citation_given failed_verification nowrap_begin
    nowrap_end nowrap/end nobreak_begin nobreak_end wrap wbr zwsp shy - !nb break br main see_also further about for redirect other_uses hatnote
    -- end div_col_end colend clr use_dmy_dates use_mdy_dates use_british_english italic_title lowercase displaytitle short_description
    good_article featured_article pp pp-protected pp-move-indef pp-semi-indef increase decrease steady profit loss gain nomention
    note_label ref_label note notetag kia pow wia dow extinct inote harvid sfnref attribution_needed pd-notice self-published_inline cita snf lower
    nec citec citneeded fv disputed ambiguous jargon contradict contradict-inline disambiguation_needed dn page_needed need_quotation_to_verify
    self-reference selfref navbar v_d_e tnavbar portal portal-inline commons-inline commonscat-inline wikisource-inline wiktionary_pipe listen
    , ouvrage chapitre article lien_web article_détaillé article_connexe catégorie_principale voir_homonymes portail références sommaire palette
    internetquelle literatur webarchiv книга статья портал portal_temático artigo_principal ap link ean bnf semi-protection hrf
    audio_icon audio-icon speaker_icon spoken_wikipedia multi-listen_item chemspider pubchem caseref csn cit noprint screen-reader_only rs toc
    """.split()
)
_BEGINNINGS = re.compile(
    r"(?:cite|citation|vcite|sfn|harv(?!txt|nb|coltxt)|efn|refn|notelist|reflist|refbegin|refend|ref |infobox|taxobox|navbox|pp-|use |"
    r"main(?:$| )|see also|authority|#tag:ref|flagicon|flagdeco|subst:|defaultsort|displaytitle|webarchive|"
    r"citar? |cytuj|cituj|ref-[a-z]{2,3}$|portal |refimprove|inflation[-/]fn|audio[- ]icon)"
)
_ENDINGS = re.compile(
    r".* (?:needed|inline|icon|source\??|span|required|begin|end|stub|box)|.*(?:-inline|-stub|\?)|.*(?:verification|verify|citation|footnote|disputed).*"
)
_DATED = re.compile(r"\s*date\s*=")

PHONETIC = re.compile(
    r"ipac?-.*|afi2?|api|msapi|respell|pronunciation respelling key|ipa-all|ipa-.*|pron-en|pronunciation|usdict|ipaudio|3to2"
)
"""Names of templates that show how a word is spoken."""


def is_silent(name: str, rest: Sequence[str]) -> bool:
    """Whether a template of this name (in lower case, blanks for underscores) shows nothing that a sentence needs.

    Args:
        rest: what stands between its bars. Doubts and wishes of the editors carry the date on which they were uttered.
    """
    return (
        name in _NAMES
        or _BEGINNINGS.match(name) is not None
        or _ENDINGS.fullmatch(name) is not None
        or any(_DATED.match(part) for part in rest)
    )
