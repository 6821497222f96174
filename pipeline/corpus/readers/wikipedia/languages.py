"""Names of languages as the templates `{{lang-xx}}` of the English Wikipedia write them before a word."""

from __future__ import annotations

_NAMES = """
af Afrikaans|am Amharic|ang Old English|ar Arabic|arc Aramaic|az Azerbaijani|be Belarusian|ber Berber|bg Bulgarian|bn Bengali|bo Tibetan|
br Breton|bs Bosnian|ca Catalan|cop Coptic|cs Czech|cy Welsh|da Danish|de German|egy Egyptian|el Greek|en English|eo Esperanto|es Spanish|et Estonian|
eu Basque|fa Persian|fi Finnish|fo Faroese|fr French|frm Middle French|fro Old French|fy West Frisian|ga Irish|gd Scottish Gaelic|gl Galician|
gla Scottish Gaelic|goh Old High German|got Gothic|grc Ancient Greek|gre Greek|gu Gujarati|gv Manx|haw Hawaiian|he Hebrew|hi Hindi|hr Croatian|hu Hungarian|
hy Armenian|id Indonesian|is Icelandic|it Italian|ja Japanese|ka Georgian|kab Kabyle|kk Kazakh|km Khmer|kn Kannada|ko Korean|ku Kurdish|ky Kyrgyz|
la Latin|lat Latin|lb Luxembourgish|lt Lithuanian|lv Latvian|mi Māori|mk Macedonian|ml Malayalam|mn Mongolian|mr Marathi|ms Malay|mt Maltese|my Burmese|
nah Nahuatl|nb Norwegian Bokmål|ne Nepali|nl Dutch|nn Norwegian Nynorsk|no Norwegian|non Old Norse|oc Occitan|ota Ottoman Turkish|pa Punjabi|
peo Old Persian|pi Pali|pl Polish|ps Pashto|pt Portuguese|qu Quechua|rm Romansh|ro Romanian|ru Russian|rus Russian|sa Sanskrit|
sco Scots|scn Sicilian|sh Serbo-Croatian|si Sinhala|sk Slovak|sl Slovene|so Somali|sq Albanian|sr Serbian|sv Swedish|sw Swahili|syr Syriac|
ta Tamil|te Telugu|tg Tajik|th Thai|tk Turkmen|
tl Tagalog|tr Turkish|tt Tatar|uk Ukrainian|ur Urdu|uz Uzbek|vi Vietnamese|yi Yiddish|zh Chinese|zu Zulu
"""
NAMES = {code: name for code, _, name in (entry.partition(" ") for entry in _NAMES.replace("\n", "").split("|"))}
"""ISO 639 code to English name."""
