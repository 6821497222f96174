"""Rules, by language, on whether a sentence continues after an end mark.

The tables list abbreviations without the final period. For English they supplement sentencex.
NEVER_FINAL_ABBREVIATIONS precede a name or another word in any case: no sentence ends after them. ABBREVIATIONS_BEFORE_NUMBERS precede a
number, a bracket or a small letter: there no sentence ends, but before a capital one may.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

NEVER_FINAL_ABBREVIATIONS = {
    "de": "bzgl bspw evtl ggf inkl insb i.d.R o.ä vgl z.Hd Hr Hrn Fr Frl Prof Dr Ing Dipl Mag St Str "
    "geb gest Abt Abs "
    "Bd Hrsg zzgl Mio Mrd u.a v.a s.a d.h z.B i.A griech lat engl frz ital span russ poln österr "
    "hebr arab v n z i u d o a chr bzw ca std",
    "fr": "M MM Mme Mmes Mlle Mlles Me Mgr Dr Drs Pr St Ste Sts Cie av apr env art éd hab cf vol "
    "chap fig bd boul réf "
    "p.ex c.-à-d h.c",
    "es": "Sr Sra Sres Srta D Dña Dr Dra Dres Ud Uds Vd Vds Prof Profa Lic Ing Arq Gral Cnel Cap Sto "
    "Sta Fr Mons Excmo "
    "Ilmo aprox núm art pág págs vol cap fig av Avda c p.ej ee cc ff rr jj ss av",
    "it": "sig sigg sig.ra sig.na dott dott.ssa prof prof.ssa avv ing arch geom on rev mons gen col "
    "cap sen pag pagg "
    "art artt vol cap fig n nn cfr ca spett gent p.es",
    "pt": "Sr Sra Srs Srta Dr Dra Drs Prof Profa Eng Arq Exmo Exma Gen Cel Cap D Sto Sta av art pág "
    "págs vol cap fig n "
    "núm aprox cf p.ex",
    "nl": "dhr mevr mw mej dr drs ing ir mr prof ds st jhr mgr o.a d.w.z m.n i.p.v t.o.v t.a.v bijv "
    "bv ca nr nrs blz "
    "vgl resp evt incl excl afb fig i.v.m a.u.b z.g s.v.p o a d w z m i p t v b",
    "pl": "prof dr hab inż mgr lek ks św im ul al pl os gen płk kpt por np tzn tzw m.in nr str s t "
    "wyd zob por red tj "
    "woj pow gm ur zm",
    "ru": "г-н г-жа ул пр пл пер д корп кв им св см ср рис табл стр гл ст илл проф акад доц канд д-р "
    "ген полк кап тов "
    "гр род ум напр т.н т.е т.к с о лат греч др.-греч нем англ франц итал исп польск араб",
    "uk": (
        "вул пл пров буд кв ім св див рис табл стор с гл ст проф акад доц д-р ген полк нар напр "
        "т.зв тобто бл м с о смт лат грец нім англ франц італ польск"
    ),
    "sv": (
        "dr prof st bl.a t.ex s.k d.v.s ca resp inkl exkl nr fig kap jfr f.d fr.o.m t.o.m t d v s"
    ),
    "da": (
        "dr prof hr fr st bl.a f.eks d.v.s dvs ca hhv inkl ekskl nr fig kap jf s.k pga mht f d v s"
    ),
    "no": "dr prof hr fr st bl.a f.eks dvs ca hhv inkl ekskl nr fig kap jf s.k pga mht f d v s",
    "cs": (
        "dr prof doc ing mgr bc mudr judr phdr sv p ul nám tř č čís str s obr tab např tzv tj mj "
        "cca resp odst n př sv mil mld"
    ),
    "ar": "د أ م ص ج ق.م",
    "tr": (
        "dr prof doç yrd av sn st mah cad sok bul no s örn bkz yy m.ö m.s i.ö i.s alm fr lat yun "
        "osm hz m i"
    ),
    "fi": "prof tri ks esim ns mm nk klo nro s kpl mrd milj e j kr n",
    "hu": "dr prof özv ifj id st kb pl ún vö ld sz i kr",
    "ro": "dl dna dra dr prof ing av str nr pag fig vol cap art cca ex d î lt sf",
    "el": "κ κα κκ δρ καθ αρ σελ βλ πρβλ λ.χ π.χ δηλ",
    "bg": (
        "д-р проф инж акад св ул бул чл ал ген полк доц напр т.е т.нар вж гр обл общ им пл с в лат"
    ),
    "hr": "dr prof mr sv ul br str npr tj tzv akad ing gđa gdin ur",
    "sr": "др проф мр св ул бр стр нпр тј тзв акад инж г-ђа г-дин ур",
    "sl": "dr prof mag sv ul št str npr tj t.i ing ga",
    "lt": "dr prof pvz žr t.y pan pr gat nr psl šv a kun",
    "lv": "dr prof piem t.i sk lpp nr sv",
    "et": "dr prof hr pr vt nt lk nr püha",
    "is": "dr próf sr hr fr sbr t.d þ.e nr bls",
    "id": "dr prof drs ir hj tn ny sdr jl hlm kec kab prov kel rp st kh k.h",
    "vi": "tp ts gs pgs ths bs tx",
    "kk": "акад проф ж жж ғ ғғ б.з.б б.з млн млрд мың",
    "ka": (
        "მდ ძვ ახ წწ ქ სოფ ბ-ნი ქ-ნი მაგ იხ შდრ გვ ლათ ბერძნ ინგლ ფრანგ გერმ რუს იტალ არაბ სპარს "
        "თურქ პროფ აკად წმ"
    ),
    "hi": "डॉ डा प्रो प्रा पं स्व श्री श्रीमती कु मो मि ई.पू ई.सा.पू कि.ग्रा सेमी से.मी रु रू नं क्र "
    "सं वि.सं उदा जि "
    "ए बी सी डी ई एफ जी एच आई जे के एल एम एन ओ पी आर एस टी यू वी एक्स वाई जेड",
    "bn": (
        "ড ডা মো মি প্রফে অধ্যা খ্রি খ্রি.পূ কি.মি এ বি সি ডি এফ জি এইচ আই জে কে এল এম এন ও পি আর "
        "এস টি ইউ ভি"
    ),
    "ta": ("திரு டாக் டாக்டர் பேரா கி.மு கி.பி ரூ எண் எம் எஸ் ஆர் கே டி வி ஜி என் பி ஏ சி ஜே எல் எப்"),
    "te": ("డా డాక్టర్ ప్రొ శ్రీ శ్రీమతి క్రీ.శ క్రీ.పూ సెం.మీ రూ నం ఎ బి సి డి ఇ ఎఫ్ జి హెచ్ ఐ జె కె ఎల్ ఎం ఎన్ ఓ పి ఆర్ ఎస్ టి"),
    "kn": ("ಡಾ ಪ್ರೊ ಶ್ರೀ ಶ್ರೀಮತಿ ಕ್ರಿ.ಶ ಕ್ರಿ.ಪೂ ಸೆಂ.ಮೀ ರೂ ನಂ ಎ ಬಿ ಸಿ ಡಿ ಎಫ್ ಜಿ ಎಚ್ ಐ ಜೆ ಕೆ ಎಲ್ ಎಂ ಎನ್ ಪಿ ಆರ್ ಎಸ್ ಟಿ"),
    "ml": (
        "ഡോ പ്രൊഫ പ്രഫ ശ്രീ ശ്രീമതി ക്രി ക്രി.പി ക്രി.മു സെ.മീ രൂ നം എ ബി സി ഡി എഫ് ജി എച്ച് ഐ ജെ "
        "കെ എൽ എം എൻ ഒ പി ആർ എസ് ടി"
    ),
    "gu": (
        "ડૉ ડો પ્રો શ્રી શ્રીમતી સ્વ ઈ.સ ઈ.સ.પૂ સે.મી રૂ નં વિ.સં એ બી સી ડી એફ જી એચ આઈ જે કે એલ "
        "એમ એન પી આર એસ ટી"
    ),
    "pa": "ਡਾ ਪ੍ਰੋ ਸ੍ਰੀ ਸ਼੍ਰੀ ਈ.ਪੂ ਕਿ.ਮੀ ਰੁ ਨੰ ਏ ਬੀ ਸੀ ਡੀ ਐਫ ਜੀ ਐਚ ਆਈ ਜੇ ਕੇ ਐਲ ਐਮ ਐਨ ਪੀ ਆਰ ਐਸ ਟੀ",
}
ABBREVIATIONS_BEFORE_NUMBERS = {
    "bg": "г гг в вв хил млн млрд лв км м кг см т др",
    "cs": "tis mil mld hod min km kg ks",
    "id": "no vol hal",
    "hr": "st god tis mil mlrd",
    "de": "etc usw max min Nr S Kap Abb Tab Art Jh Jhs sog sogen",
    "fr": "p pp n no nos env ca vs max min t ch col l",
    "es": "p pp n no ca vs max min s ss a d sig",
    "it": "p pp no ca vs max min sec secc",
    "ro": "sec nr pag",
    "sr": "г гг ст в хиљ мил млрд",
    "pt": "p pp no ca vs máx mín séc",
    "nl": "p pp vs max min e.v",
    "pl": "r w ww ok godz pkt tys mln mld poz art",
    "ru": "г гг в вв ок тыс млн млрд руб коп с п пп т тт №",
    "uk": "р рр ст тис млн млрд грн коп п пп т",
}

# A number and one of these abbreviations after one of these words only open a sentence: `В 1950 г.`
_PREPOSITIONS = frozenset(
    "в во с со к до от на по из у з із від за през из w we z od do na po przed u iz от од".split()
)
# These end a sentence as often as not, though their last part alone is an abbreviation.
_AND_SO_ON = frozenset("т.д т.п т.ін т.н".split())

# A period after a number makes it an ordinal: `3. Oktober`, `19. Jahrhundert`, `5. května`.
ORDINALS = frozenset("de da no fi cs sk sl hr sr bs hu pl et lv is tr lb".split())

# German capitalizes the noun after an ordinal, so a sentence ends there only before a word that
# often begins one.
SENTENCE_STARTERS = {
    "de": "Der Die Das Den Dem Des Ein Eine Einen Einem Einer Er Sie Es Wir Ich Ihr Man Dies Diese "
    "Dieser Dieses Diesem "
    "Diesen Jede Jeder Alle Viele Einige Andere "
    "In Im Am An Auf Aus Bei Beim Bis Durch Für Gegen Hinter Mit Nach Neben Ohne Seit Trotz Über "
    "Um Unter Von Vom "
    "Vor Während Wegen Zu Zum Zur Zwischen "
    "Aber Allerdings Als Also Auch Außerdem Bald Bereits Da Dabei Dadurch Dafür Daher Damals Damit "
    "Danach Dann "
    "Daraufhin Darin Daran Darauf Dazu Dennoch Denn Deshalb "
    "Doch Dort Ebenso Erst Heute Hier Hierbei Jedoch Jetzt Nachdem Nicht Noch Nun Nur Ob Obwohl "
    "Oder Schließlich "
    "Sein Seine Seinen Seiner Ihre Ihren So Sodann Somit Später Und "
    "Was Weil Weitere Wenn Wer Wie Wo Zudem Zuerst Zunächst Zugleich Unsere Mein Meine Kein "
    "Keine".split(),
}

# Languages that are split by the rules of a related one.
RELATED = {
    "af": "nl", "als": "de", "an": "es", "as": "bn", "ast": "es", "az": "tr", "ba": "kk",
    "bar": "de", "be": "ru", "bs": "hr",
    "ca": "es", "dsb": "cs", "fo": "da", "frr": "de", "fy": "nl", "gl": "pt", "gsw": "de",
    "hsb": "cs", "ky": "kk", "lb": "de",
    "li": "nl", "mk": "bg", "mr": "hi", "ms": "id", "nb": "no", "nds": "de", "ne": "hi", "nn": "no",
    "oc": "fr", "rm": "de",
    "rue": "uk", "sa": "hi", "sh": "hr", "sk": "cs", "szl": "pl", "tt": "kk", "vls": "nl",
    "wa": "fr",
}  # fmt: skip

# Titles of English names in other languages, capitalized like this.
_ENGLISH_TITLES = frozenset(
    "Mr Mrs Ms Dr Prof St Jr Sr Gen Col Capt Lt Sgt Gov Rev Mt Ft Vol".split()
)

_NEAR = 20  # characters before a sentence: an abbreviation and blanks
_FAR = 80  # characters from the start of a sentence

_LAST_WORD = re.compile(
    r"(?:^|[\s'“”„«»‚‘’(\[/—–-]|(?<!\w)\")([^\W\d_][^\s\"'“”‘’„«»()\[\]/,;:!?]*)\.\s*$"
)
_LAST_NUMBER = re.compile(r"(?<![\w.,–-])(?:\d{1,2}|[IVXLC]{1,5})\.\s*$")
_OPENING = re.compile(r"\W*(\w+)\s+(?:\d{1,4}|[IVXLC]{1,5})(?:[–—-]\w{1,5})?\.?\s+\w{1,3}\.\s*$")
_SPACED = re.compile(r"(?<!\w)(\w{1,2})\.\s(\w{1,3})\.\s*$")  # z. B., т. д.
# A number after such a word is no ordinal: č. 5.
_LABELLED = re.compile(
    r"(?:(?<!\w)(?:č|čís|čl|br|nr|no|str|s|p|lk|бр|стр|чл)\.|§)\s\d{1,3}\.\s*$", re.I
)
_ROMAN = re.compile("[IVXLC]{1,5}(?!\\w)")
_CENTURIES = ("sec", "séc", "s")  # before a single letter; V and I are words in other languages
_FIRST_WORD = re.compile(r"[\s\"'`“”„«»‚‘’(\[,—–-]*(\w+)")
_DASH = re.compile("[-–—] ")
_ITEM = re.compile(r"\((?:[a-z]|\d{1,2})\)\s")  # begins a list item
# Capital letters, or syllables of scripts without case, separated by dots: `J.R`, `डॉ`, `कि.मी`,
# `წ`.
_VIRAMA = "[\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca]"
_SYLLABLE = rf"[\u05d0-\u0dff\u10d0-\u10ff\u1200-\u137f][^\w.]*(?:(?<={_VIRAMA})\w[^\w.]*)*"
_CAPITAL = "[A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĖĘĚĞĢİĪĮĶĹĻĽŁŃŅŇŌŐŒŔŘŚŞŠŢŤŪŮŰŲŹŻŽƏȘȚΆ-ΏΑ-ΫА-ЯЀ-Џ]"
# words of one syllable exist in India
_LETTER = r"[\u0900-\u0dff]|[\u05d0-\u08ff\u0b80-\u0bff\u10d0-\u10ff\u1200-\u137f][^\w.]*"
_INITIALS = re.compile(
    rf"{_CAPITAL}(?:\.-?{_CAPITAL}){{0,2}}|{_LETTER}|{_SYLLABLE}(?:\.{_SYLLABLE})+"
)
_GEORGIAN = re.compile("[\u10d0-\u10ff]")  # lower case in Unicode, but sentences begin with them
# Long and ends in a vowel: hardly an abbreviation.
_WHOLE_WORD = re.compile(
    "[^\\W\\d_]{4,}[aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýąęășаеёиоуыэюяіїєαεηιουωάέήίόύώ]"
)
# One letter, dotted, or without vowels: an abbreviation if a number follows.
_SHORTENED = re.compile(
    r"\w|\w+\..*|[bcdfghj-np-tv-xzçčćšžśźńłбвгджзклмнпрстфхцчшщйβγδζθκλμνξπρσςτφχψ]{2,5}"
)

# English abbreviations before a number, a bracket or a small letter: no sentence ends there.
_ENGLISH_LEADS_ON = re.compile(
    r"(?<![\w.])(?:eqs?|refs?|figs?|tabs?|secs?|sects?|chaps?|chs?|vols?|nos?|pp?|arts?|par|pars|"
    r"ll?|vv?|cf|ca?|approx|resp|"
    r"incl|excl|est|min|max|avg|dept|viz|vs|ed|eds|trans|ibid|op|e\.g|i\.e|b|d|r|fl|lat|long|"
    r"ver)\.\s*$",
    re.IGNORECASE,
)
_CONTINUES = re.compile(r"[\d(\[a-z#§]")
# The mark of a title, a quotation, an initial, a number: small letters continue.
_RUNS_ON = re.compile(r"(?:[?!…][\"'”’)]*|\.[\"'”’)]+|(?<!\w)(?:\d{1,3}|\w)\.)\s*$")
# A question; the last word of a title is capitalized.
_QUESTION = re.compile(r"(?<![\w'’-])[a-z][a-z'’]*\s?\?\s+$")
_ANSWERED = re.compile(r"(?:s?he|said|asked|cried|replied|and|or|nor|but|for)\b")
_SHORT_SENTENCE = 20  # characters
# A bracket after a title's own end mark, and its sentence.
_TITLE_CONTINUES = re.compile(r"\([^()]{0,59}[^().!?]\)(?:,? [a-z]|[,;:]|\.?$)")


def _words(table: dict[str, str], language: str) -> frozenset[str]:
    """Return the lower-case words of a table for a language; empty if the table lacks it."""
    return frozenset(table.get(language, "").lower().split())


@dataclass(frozen=True, slots=True)
class SentenceRules:
    """Rules on whether a sentence continues, for languages other than English."""

    titles: frozenset[str]
    leads_on: frozenset[str]
    has_ordinals: bool
    openers: frozenset[str]

    def continues(self, text: str, begin: int, position: int, has_case: bool) -> bool:
        """Return True if the sentence from `begin` continues at `position`, after an end mark.

        Args:
            text: the paragraph.
            begin: start of the sentence.
            position: start of what follows the end mark and the blank.
            has_case: `text` mixes capital and small letters, or its script has none.
        """
        after = text[position : position + _FAR]
        first = _FIRST_WORD.match(after)
        if first is None or _ITEM.match(after):
            before = text[max(begin, position - _NEAR) : position]
            return self.has_ordinals and after[:1] == "§" and bool(_LAST_NUMBER.search(before))
        word = first[1]
        is_small = has_case and word[0].islower() and not _GEORGIAN.match(word)
        before = text[max(begin, position - _NEAR) : position]
        if not before.rstrip().endswith("."):
            return is_small  # “…?” she said
        last = _LAST_WORD.search(before)
        if last is not None:
            name = last[1].lower()
            spaced = _SPACED.search(before)
            joint = f"{spaced[1]}.{spaced[2]}".lower() if spaced else ""
            if joint in _AND_SO_ON:
                return is_small
            if joint in self.titles or self._is_opening(text, begin, position, name):
                return True
            if last[1] in _ENGLISH_TITLES or _INITIALS.fullmatch(last[1]) or self._is_title(name):
                return True
            if is_small:
                return _WHOLE_WORD.fullmatch(name) is None and not (
                    len(name) > 3 and _DASH.match(after)
                )
            is_roman = _ROMAN.match(word) and (len(word) > 1 or name in _CENTURIES)
            if is_roman and name in self.leads_on:
                return True
            if word[0].isdigit() or after[0] in "([":
                return name in self.leads_on or _SHORTENED.fullmatch(name) is not None
        elif is_small:
            return True
        return (
            self.has_ordinals
            and _LAST_NUMBER.search(before) is not None
            and _LABELLED.search(before) is None
            and word.capitalize() not in self.openers
        )

    def _is_opening(self, text: str, begin: int, position: int, name: str) -> bool:
        """Return True if the sentence has only a date so far: `В 1950 г.`"""
        if position - begin > _NEAR or name not in self.leads_on:
            return False
        opening = _OPENING.match(text[begin:position])
        return opening is not None and opening[1].lower() in _PREPOSITIONS

    def _is_title(self, name: str) -> bool:
        """Return True if `name`, or each of its dotted parts, is in `titles`: `dr`, `எம்.ஜி`."""
        return name in self.titles or (
            "." in name and all(part in self.titles for part in name.split("."))
        )


class EnglishRules:
    """English rules on whether a sentence continues, in addition to sentencex."""

    def continues(self, text: str, begin: int, position: int, has_case: bool) -> bool:
        """Return True if the sentence continues; see `SentenceRules.continues`."""
        first = text[position]
        if first.isupper():
            return False
        if has_case and first.islower() and self._runs_on(text, begin, position):
            return True
        if first == "(" and _TITLE_CONTINUES.match(text, position):  # Who's Afraid? (film) is
            return True
        return bool(_CONTINUES.match(first)) and bool(
            _ENGLISH_LEADS_ON.search(text, max(begin, position - _NEAR), position)
        )

    @staticmethod
    def _runs_on(text: str, begin: int, position: int) -> bool:
        """Return True if a small letter at `position` continues the sentence."""
        near = max(begin, position - 12)
        if _RUNS_ON.search(text, near, position) is None:
            return False
        # the writer uses no capitals
        if text[begin].islower() and position - begin > _SHORT_SENTENCE:
            return False
        return (
            _QUESTION.search(text, near, position) is None
            or _ANSWERED.match(text, position) is not None
        )


@functools.cache
def sentence_rules(language: str) -> SentenceRules | EnglishRules:
    """Return the rules of a language (ISO 639)."""
    if language == "en":
        return EnglishRules()
    language = (
        language if language in NEVER_FINAL_ABBREVIATIONS else RELATED.get(language, language)
    )
    return SentenceRules(
        titles=_words(NEVER_FINAL_ABBREVIATIONS, language),
        leads_on=_words(ABBREVIATIONS_BEFORE_NUMBERS, language),
        has_ordinals=language in ORDINALS,
        openers=frozenset(SENTENCE_STARTERS.get(language, ())),
    )
