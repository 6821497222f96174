"""MediaWiki's words in the languages of its larger wikis, which `<siteinfo>` does not give.

A dump names its namespaces, but not their aliases (`Bild:` for `Datei:`), its magic words, or the
templates of disambiguation pages. Names are in lower case with blanks for underscores. Sources:
MediaWiki's message files and the wikis' disambiguation templates; more can be set in the config.
"""

from __future__ import annotations

import functools
import re

# Canonical names of the file and category namespaces, and aliases kept by the software or the
# wikis.
FILE_ALIASES = frozenset(
    """
    file image media datei bild fichier image archivo imagen immagine ficheiro imagem bestand
    afbeelding plik grafika файл медиа
    изображение зображення ファイル 画像 파일 그림 文件 檔案 档案 图像 圖像 圖片 媒体 媒體 ملف
    صورة وسائط پرونده تصویر קובץ
    תמונה चित्र dosya resim
    tiedosto kuva fil billede fájl kép soubor obrázek súbor fișier fişier imagine hình berkas gambar
    slika датотека слика
    αρχείο εικόνα ไฟล์ ภาพ fitxer imatge dosiero pilt vaizdas attēls fitxategi irudi ficheru médium
    medio
    """.split()
) | {"tập tin"}
CATEGORY_ALIASES = frozenset(
    """
    category kategorie catégorie categoría categoria categorie kategoria категория категорія
    カテゴリ 분류
    分类 分類 تصنيف رده קטגוריה
    श्रेणी kategori luokka kategória kategorija категорија κατηγορία หมวดหมู่ kategorio kategooria
    """.split()
) | {"thể loại"}

# Magic words of redirects, without `#`.
_REDIRECTS = """
redirect|weiterleitung|redirection|redirección|redireccion|rinvia|rinvio|redirecionamento|
doorverwijzing|patrz|przekieruj|tam|
перенаправление|перенапр|перенаправлення|転送|リダイレクト|넘겨주기|重定向|تحويل|تغيير_مسار|
تغییر_مسیر|تغییرمسیر|הפניה|अनुप्रेषित|पुनर्प्रेषित|yönlendirme|yönlendir|
ohjaus|uudelleenohjaus|omdirigering|omdirigér|átirányítás|přesměruj|presmeruj|redirectare|đổi|
alih|alihkan|lencong|preusmjeri|preusmeritev|
преусмери|пренасочување|ανακατευθυνση|ανακατεύθυνση|เปลี่ยนทาง|redirecció|alidirekti|alidirektu|
suuna|peradresavimas|birzuzendu|bideratu|
istiqamətləndirmə|tilvísun|athsheoladh
"""
_WORDS = "|".join(
    re.escape(word).replace("_", "[ _]?")
    for word in _REDIRECTS.replace("\n", "").split("|")
    if word
)
_KNOWN_REDIRECT = re.compile(rf"\s*#\s*(?:{_WORDS})\s*:?\s*\[\[", re.IGNORECASE)
# `#WORD [[Target]]` followed only by templates, categories and switches: any word means a redirect.
_BARE_REDIRECT = re.compile(
    r"\s*#[^\W\d_][^\[\]{}|#\n]{0,40}:?\s*\[\[[^\[\]\n]{1,255}\]\]\s*(?:(?:\{\{[^{}]*\}\}|"
    r"\[\[[^\[\]\n]*:[^\[\]\n]*\]\]|__\w+__)\s*)*"
)


def is_redirect(text: str) -> bool:
    """Return True if the text of a page is a redirect."""
    head = text[:200].lstrip()
    if not head.startswith("#"):
        return False
    return bool(
        _KNOWN_REDIRECT.match(head) or (len(text) < 2000 and _BARE_REDIRECT.fullmatch(text))
    )


# Templates of disambiguation pages and of lists of names, in all languages.
_DISAMBIGUATION = """
disambig|disambiguation|disambiguation cleanup|disambiguation page|disamb|dis|dab|hndis|geodis|
mathdab|mathematical disambiguation|
numberdis|roaddis|schooldis|hospitaldis|set index|set index article|sia|surname|given name|
human name disambiguation|place name disambiguation|
begriffsklärung|bkl|obergriff|homonymie|homonyme|patronyme|paronymie|toponymie|
internationalisation|desambiguación|desambig|des|disambigua|desambiguação|desamb|
dp|doorverwijspagina|dpintro|ujednoznacznienie|disambigR|неоднозначность|многозначность|значения|
однофамильцы|тёзки|список однофамильцев|
неоднозначність|багатозначність|прізвище|förgrening|gren|förgreningssida|flertydig|peker|
pekerside|täsmennyssivu|täsmennys|rozcestník|rozlišovací stránka|
rozlišovacia stránka|egyért|egyértelműsítő lap|dezambiguizare|dezambig|пояснение|
вишезначна одредница|вишезначна|razdvojba|razločitev|višeznačnost|
αποσαφήνιση|αποσαφ|anlam ayrımı|anlamayrımı|توضيح|صفحة توضيح|ابهام زدایی|ابهام‌زدایی|פירושונים|
פירושון|बहुविकल्पी|बहुविकल्पी शब्द|দ্ব্যর্থতা নিরসন|แก้กำกวม|
trang định hướng|định hướng|disambiguasi|nyahkekaburan|aimai|曖昧さ回避|人名の曖昧さ回避|
地名の曖昧さ回避|同名の作品|동음이의|동명이인|동음이의어|消歧义|消歧義|消歧义页|
desambiguació|argipen|homónimos|apartigilo|täpsustuslehekülg|nuorodinis straipsnis|
nozīmju atdalīšana|discretiva|მრავალმნიშვნელოვანი
"""


_NAMES = frozenset(name.strip() for name in _DISAMBIGUATION.lower().replace("\n", "").split("|"))
_ENDINGS = tuple(f" {name}" for name in ("disambig", "disambiguation", "dab"))
_BEGINNINGS = ("airport disambig", "letter-number", "species latin name")
_OPENING = re.compile(r"\{\{(\s*[^|{}\n]*)[|}\n]")
_TEMPLATE = re.compile(r"(?:[^\W\d_]{2,20}:)?([^\W\d][^|{}\n]{0,60}?)")
_LONGEST_NAME = 82  # characters; longer texts are not cached


def lists_meanings(text: str, more: frozenset[str] = frozenset()) -> bool:
    """Return True if a page has a disambiguation template or the magic word.

    Args:
        text: wikitext.
        more: lower-case names of additional templates.
    """
    for opening in set(_OPENING.findall(text)):  # most occur many times
        opening = opening.strip()
        if len(opening) <= _LONGEST_NAME:
            name, known = _template_name(opening)
            if known or name in more:
                return True
    return "__DISAMBIG__" in text


@functools.lru_cache(maxsize=1 << 13)  # most pages use the same ones
def _template_name(opening: str) -> tuple[str, bool]:
    """Return a template's lower-case name, and whether it marks disambiguation pages."""
    found = _TEMPLATE.fullmatch(opening)
    name = found[1].lower().replace("_", " ") if found else ""
    return name, name in _NAMES or name.endswith(_ENDINGS) or name.startswith(_BEGINNINGS)


_TITLE = re.compile(
    r"[(（](?:disambiguation|begriffsklärung|homonymie|desambiguación|desambiguação|disambigua|"
    r"doorverwijspagina|ujednoznacznienie|значения|значення|"
    r"曖昧さ回避|동음이의|消歧义|消歧義|توضيح|ابهام‌زدایی|פירושונים|olika betydelser|flertydig|täsmennyssivu|"
    r"rozcestník|egyértelműsítő lap|dezambiguizare|"
    r"anlam ayrımı|αποσαφήνιση|định hướng|disambiguasi|desambiguació|apartigilo)[)）]$",
    re.IGNORECASE,
)


def names_meanings(title: str) -> bool:
    """Return True if a title ends like a disambiguation page: `Mercury (disambiguation)`."""
    return title[-1:] in (")", "）") and bool(_TITLE.search(title))


# Headings of appended sections without running text, by language.
APPENDED_SECTIONS = {
    "en": """
        see also|references|external links|external link|further reading|notes|bibliography|sources|footnotes|citations|notes and references|
        references and notes|works cited|gallery|discography|filmography|publications|selected publications|
        selected bibliography|literature|notes and citations|endnotes|general references""",
    "de": (
        "einzelnachweise|weblinks|literatur|siehe "
        "auch|quellen|anmerkungen|belege|fußnoten|werke|diskografie|filmografie|galerie|schriften|a"
        "uswahl"
    ),
    "fr": """voir aussi|notes et références|références|notes|liens externes|lien externe|bibliographie|articles connexes|annexes|sources|liens internes|
        discographie|filmographie|galerie|publications""",
    "es": (
        "véase también|referencias|enlaces externos|bibliografía|notas|notas y "
        "referencias|fuentes|discografía|filmografía|galería|obras"
    ),
    "it": (
        "note|bibliografia|voci correlate|altri progetti|collegamenti "
        "esterni|riferimenti|discografia|filmografia|galleria d'immagini|opere"
    ),
    "pt": (
        "ver também|referências|ligações externas|bibliografia|notas|notas e "
        "referências|discografia|filmografia|galeria|fontes"
    ),
    "nl": (
        "zie ook|externe links|externe link|bronnen|literatuur|referenties|noten|bronnen, noten en/"
        "of referenties|voetnoten|discografie|filmografie|galerij"
    ),
    "pl": "zobacz też|przypisy|linki zewnętrzne|bibliografia|uwagi|dyskografia|filmografia|galeria",
    "ru": (
        "см. "
        "также|примечания|ссылки|литература|источники|библиография|дискография|фильмография|галерея"
        "|сноски"
    ),
    "uk": (
        "див. "
        "також|примітки|посилання|література|джерела|бібліографія|дискографія|фільмографія|галерея"
    ),
    "sv": (
        "se även|referenser|externa "
        "länkar|källor|noter|litteratur|fotnoter|diskografi|filmografi|galleri|vidare läsning"
    ),
    "ja": "脚注|出典|参考文献|関連項目|外部リンク|注釈|注|関連文献|ディスコグラフィ|ギャラリー|参照|脚注・出典|出典・脚注",
    "zh": "参见|參見|参考文献|參考文獻|外部链接|外部連結|注释|註釋|参考资料|參考資料|延伸阅读|延伸閱讀|脚注|相关条目|相關條目|注解|註解|来源|來源",
    "ko": "같이 보기|각주|외부 링크|참고 문헌|참고문헌|주석|출처|바깥 고리|함께 보기",
    "ar": (
        "انظر أيضا|انظر أيضًا|مراجع|المراجع|وصلات خارجية|مصادر|المصادر|هوامش|ملاحظات|روابط "
        "خارجية|معرض صور"
    ),
    "fa": "جستارهای وابسته|منابع|پانویس|پیوند به بیرون|یادداشت‌ها|نگارخانه",
    "he": "ראו גם|קישורים חיצוניים|הערות שוליים|לקריאה נוספת|ביאורים",
    "tr": "ayrıca bakınız|kaynakça|dış bağlantılar|notlar|konuyla ilgili yayınlar",
    "vi": "xem thêm|tham khảo|liên kết ngoài|chú thích|thư mục",
    "id": "lihat pula|referensi|pranala luar|catatan kaki|catatan|daftar pustaka|bibliografi",
    "cs": "odkazy|reference|poznámky|externí odkazy|související články|literatura|zdroje",
    "fi": "lähteet|aiheesta muualla|katso myös|kirjallisuutta|viitteet",
    "hu": "jegyzetek|források|további információk|kapcsolódó szócikkek|irodalom|külső hivatkozások",
}  # fmt: skip


def appended_sections(*languages: str) -> tuple[str, ...]:
    """Return the lower-case headings of `languages`; without languages, of all known ones."""
    chosen = [
        APPENDED_SECTIONS[language]
        for language in (languages or APPENDED_SECTIONS)
        if language in APPENDED_SECTIONS
    ]
    return tuple(
        dict.fromkeys(name.strip() for text in chosen for name in text.replace("\n", "").split("|"))
    )


_CODE = re.compile(r"([a-z]{2,3})(?:-.*)?")
_PROJECTS = (
    "wiktionary|wikiquote|wikibooks|wikisource|wikinews|wikiversity|wikivoyage|wikidata|commons|spe"
    "cies"
)
_DATABASE = re.compile(rf"(?:.*?)({_PROJECTS})(?:wiki)?")
_HOST = re.compile(rf"https?://(?:[\w-]+\.)*({_PROJECTS}|wikipedia)\.")

NO_PROSE = {
    "wiktionary": (
        "its entries are numbered definitions, pronunciations and forms that templates write, of "
        "which nearly all would be dropped as list items"
    ),
    "wikiquote": (
        "its quotations are items of lists, of which most would be dropped, and the rest have no "
        "text around them"
    ),
    "wikisource": (
        "its works stand on pages of another namespace, which articles only include, so hardly a "
        "sentence would be left"
    ),
    "wikidata": "its pages are JSON, and all of them would be dropped as not_wikitext",
    "commons": "its pages describe files in templates, so hardly a sentence would be left",
    "species": "its pages are lists of names, so hardly a sentence would be left",
}
"""Wikis without running text, and what would be lost, for the error message."""


def language_code(name: str) -> str:
    """Return the ISO 639 code of `xml:lang` (`zh-Hans`: `zh`); empty if invalid."""
    found = _CODE.fullmatch(name.lower())
    return found[1] if found else ""


def project(dbname: str, base: str) -> str:
    """Return the Wikimedia project of a dump, from `<dbname>` or the host in `<base>`; else ""."""
    found = _DATABASE.fullmatch(dbname.lower()) or _HOST.match(base.lower())
    return found[1] if found else ""


# Language names that templates write before a word: `{{lang-xx}}` of the English Wikipedia,
# `{{xxS}}` of the German one.

_LANGUAGE_NAMES = """
af Afrikaans|am Amharic|ang Old English|ar Arabic|arc Aramaic|az Azerbaijani|be Belarusian|
ber Berber|bg Bulgarian|bn Bengali|bo Tibetan|
br Breton|bs Bosnian|ca Catalan|cop Coptic|cs Czech|cy Welsh|da Danish|de German|egy Egyptian|
el Greek|en English|eo Esperanto|es Spanish|et Estonian|
eu Basque|fa Persian|fi Finnish|fo Faroese|fr French|frm Middle French|fro Old French|
fy West Frisian|ga Irish|gd Scottish Gaelic|gl Galician|
gla Scottish Gaelic|goh Old High German|got Gothic|grc Ancient Greek|gre Greek|gu Gujarati|
gv Manx|haw Hawaiian|he Hebrew|hi Hindi|hr Croatian|hu Hungarian|
hy Armenian|id Indonesian|is Icelandic|it Italian|ja Japanese|ka Georgian|kab Kabyle|kk Kazakh|
km Khmer|kn Kannada|ko Korean|ku Kurdish|ky Kyrgyz|
la Latin|lat Latin|lb Luxembourgish|lt Lithuanian|lv Latvian|mi Māori|mk Macedonian|ml Malayalam|
mn Mongolian|mr Marathi|ms Malay|mt Maltese|my Burmese|
nah Nahuatl|nb Norwegian Bokmål|ne Nepali|nl Dutch|nn Norwegian Nynorsk|no Norwegian|
non Old Norse|oc Occitan|ota Ottoman Turkish|pa Punjabi|
peo Old Persian|pi Pali|pl Polish|ps Pashto|pt Portuguese|qu Quechua|rm Romansh|ro Romanian|
ru Russian|rus Russian|sa Sanskrit|
sco Scots|scn Sicilian|sh Serbo-Croatian|si Sinhala|sk Slovak|sl Slovene|so Somali|sq Albanian|
sr Serbian|sv Swedish|sw Swahili|syr Syriac|
ta Tamil|te Telugu|tg Tajik|th Thai|tk Turkmen|
tl Tagalog|tr Turkish|tt Tatar|uk Ukrainian|ur Urdu|uz Uzbek|vi Vietnamese|yi Yiddish|zh Chinese|
zu Zulu
"""
NAMES = {
    code: name
    for code, _, name in (
        entry.partition(" ") for entry in _LANGUAGE_NAMES.replace("\n", "").split("|")
    )
}
"""English names by ISO 639 code."""

_GERMAN = """
en englisch|fr französisch|la lateinisch|it italienisch|es spanisch|ru russisch|grc altgriechisch|
el griechisch|ar arabisch|ja japanisch|
zh chinesisch|nl niederländisch|pl polnisch|pt portugiesisch|sv schwedisch|da dänisch|
no norwegisch|fi finnisch|hu ungarisch|cs tschechisch|
tr türkisch|he hebräisch|hbo hebräisch|fa persisch|uk ukrainisch|ro rumänisch|sr serbisch|
hr kroatisch|ga irisch|mt maltesisch|sq albanisch|
bg bulgarisch|mk mazedonisch|sl slowenisch|sk slowakisch|is isländisch|et estnisch|lv lettisch|
lt litauisch|be belarussisch|ka georgisch|
hy armenisch|az aserbaidschanisch|hi Hindi|ko koreanisch|vi vietnamesisch|th thailändisch|
id indonesisch|ca katalanisch|eu baskisch|
gl galicisch|cy walisisch|gd schottisch-gälisch|rm rätoromanisch|lb luxemburgisch|af Afrikaans|
sa Sanskrit
"""
GERMAN = {
    code: name
    for code, _, name in (entry.partition(" ") for entry in _GERMAN.replace("\n", "").split("|"))
}
"""German names by ISO 639 code."""
