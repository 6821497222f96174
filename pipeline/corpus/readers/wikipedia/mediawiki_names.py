"""Words of MediaWiki in the languages of its larger wikis, for what a dump's `<siteinfo>` does not say.

A dump names its namespaces, but neither their aliases (`Bild:` beside `Datei:`), nor its magic words, nor the templates that mark a
disambiguation page. Names are in lower case with blanks for underscores. The words are those of MediaWiki's message files and of the
wikis' own disambiguation templates; a wiki with others gives them in the config.
"""

from __future__ import annotations

import functools
import re

# Of the namespaces of files and of categories: canonical names, and aliases that the software or the wikis keep.
FILE_ALIASES = frozenset(
    """
    file image media datei bild fichier image archivo imagen immagine ficheiro imagem bestand afbeelding plik grafika файл медиа
    изображение зображення ファイル 画像 파일 그림 文件 檔案 档案 图像 圖像 圖片 媒体 媒體 ملف صورة وسائط پرونده تصویر קובץ תמונה चित्र dosya resim
    tiedosto kuva fil billede fájl kép soubor obrázek súbor fișier fişier imagine hình berkas gambar slika датотека слика
    αρχείο εικόνα ไฟล์ ภาพ fitxer imatge dosiero pilt vaizdas attēls fitxategi irudi ficheru médium medio
    """.split()
) | {"tập tin"}
CATEGORY_ALIASES = frozenset(
    """
    category kategorie catégorie categoría categoria categorie kategoria категория категорія カテゴリ 분류 分类 分類 تصنيف رده קטגוריה
    श्रेणी kategori luokka kategória kategorija категорија κατηγορία หมวดหมู่ kategorio kategooria
    """.split()
) | {"thể loại"}

# Magic words of redirects, without their `#`.
_REDIRECTS = """
redirect|weiterleitung|redirection|redirección|redireccion|rinvia|rinvio|redirecionamento|doorverwijzing|patrz|przekieruj|tam|
перенаправление|перенапр|перенаправлення|転送|リダイレクト|넘겨주기|重定向|تحويل|تغيير_مسار|تغییر_مسیر|تغییرمسیر|הפניה|अनुप्रेषित|पुनर्प्रेषित|yönlendirme|yönlendir|
ohjaus|uudelleenohjaus|omdirigering|omdirigér|átirányítás|přesměruj|presmeruj|redirectare|đổi|alih|alihkan|lencong|preusmjeri|preusmeritev|
преусмери|пренасочување|ανακατευθυνση|ανακατεύθυνση|เปลี่ยนทาง|redirecció|alidirekti|alidirektu|suuna|peradresavimas|birzuzendu|bideratu|
istiqamətləndirmə|tilvísun|athsheoladh
"""
_WORDS = "|".join(re.escape(word).replace("_", "[ _]?") for word in _REDIRECTS.replace("\n", "").split("|") if word)
_KNOWN_REDIRECT = re.compile(rf"\s*#\s*(?:{_WORDS})\s*:?\s*\[\[", re.IGNORECASE)
# `#WORD [[Target]]`, and nothing after it but templates, categories and marks: then the word is one, whatever it means.
_BARE_REDIRECT = re.compile(
    r"\s*#[^\W\d_][^\[\]{}|#\n]{0,40}:?\s*\[\[[^\[\]\n]{1,255}\]\]\s*(?:(?:\{\{[^{}]*\}\}|\[\[[^\[\]\n]*:[^\[\]\n]*\]\]|__\w+__)\s*)*"
)


def is_redirect(text: str) -> bool:
    """Whether a page's text is a redirect to another page."""
    head = text[:200].lstrip()
    if not head.startswith("#"):
        return False
    return bool(_KNOWN_REDIRECT.match(head) or (len(text) < 2000 and _BARE_REDIRECT.fullmatch(text)))


# Templates of disambiguation pages and of lists of names, by language.
_DISAMBIGUATION = """
disambig|disambiguation|disambiguation cleanup|disambiguation page|disamb|dis|dab|hndis|geodis|mathdab|mathematical disambiguation|
numberdis|roaddis|schooldis|hospitaldis|set index|set index article|sia|surname|given name|
human name disambiguation|place name disambiguation|
begriffsklärung|bkl|obergriff|homonymie|homonyme|patronyme|paronymie|toponymie|internationalisation|desambiguación|desambig|des|disambigua|desambiguação|desamb|
dp|doorverwijspagina|dpintro|ujednoznacznienie|disambigR|неоднозначность|многозначность|значения|однофамильцы|тёзки|список однофамильцев|
неоднозначність|багатозначність|прізвище|förgrening|gren|förgreningssida|flertydig|peker|pekerside|täsmennyssivu|täsmennys|rozcestník|rozlišovací stránka|
rozlišovacia stránka|egyért|egyértelműsítő lap|dezambiguizare|dezambig|пояснение|вишезначна одредница|вишезначна|razdvojba|razločitev|višeznačnost|
αποσαφήνιση|αποσαφ|anlam ayrımı|anlamayrımı|توضيح|صفحة توضيح|ابهام زدایی|ابهام‌زدایی|פירושונים|פירושון|बहुविकल्पी|बहुविकल्पी शब्द|দ্ব্যর্থতা নিরসন|แก้กำกวม|
trang định hướng|định hướng|disambiguasi|nyahkekaburan|aimai|曖昧さ回避|人名の曖昧さ回避|
地名の曖昧さ回避|同名の作品|동음이의|동명이인|동음이의어|消歧义|消歧義|消歧义页|
desambiguació|argipen|homónimos|apartigilo|täpsustuslehekülg|nuorodinis straipsnis|nozīmju atdalīšana|discretiva|მრავალმნიშვნელოვანი
"""


_NAMES = frozenset(name.strip() for name in _DISAMBIGUATION.lower().replace("\n", "").split("|"))
_ENDINGS = tuple(f" {name}" for name in ("disambig", "disambiguation", "dab"))
_BEGINNINGS = ("airport disambig", "letter-number", "species latin name")
_OPENING = re.compile(r"\{\{(\s*[^|{}\n]*)[|}\n]")
_TEMPLATE = re.compile(r"(?:[^\W\d_]{2,20}:)?([^\W\d][^|{}\n]{0,60}?)")
_LONGEST_NAME = 82  # characters of what it matches; more is not remembered


def lists_meanings(text: str, more: frozenset[str] = frozenset()) -> bool:
    """Whether a page has a template, or the magic word, by which wikis mark pages that list the meanings of a name.

    Args:
        text: wikitext.
        more: names of such templates beside the known ones, in lower case.
    """
    for opening in set(_OPENING.findall(text)):  # most are there many times
        opening = opening.strip()
        if len(opening) <= _LONGEST_NAME:
            name, known = _template_name(opening)
            if known or name in more:
                return True
    return "__DISAMBIG__" in text


@functools.lru_cache(maxsize=1 << 13)  # most pages have the same ones
def _template_name(opening: str) -> tuple[str, bool]:
    """The name of a template (what stands behind its braces), in lower case, and whether it is known to mark such pages."""
    found = _TEMPLATE.fullmatch(opening)
    name = found[1].lower().replace("_", " ") if found else ""
    return name, name in _NAMES or name.endswith(_ENDINGS) or name.startswith(_BEGINNINGS)


_TITLE = re.compile(
    r"[(（](?:disambiguation|begriffsklärung|homonymie|desambiguación|desambiguação|disambigua|doorverwijspagina|ujednoznacznienie|значения|значення|"
    r"曖昧さ回避|동음이의|消歧义|消歧義|توضيح|ابهام‌زدایی|פירושונים|olika betydelser|flertydig|täsmennyssivu|rozcestník|egyértelműsítő lap|dezambiguizare|"
    r"anlam ayrımı|αποσαφήνιση|định hướng|disambiguasi|desambiguació|apartigilo)[)）]$",
    re.IGNORECASE,
)


def names_meanings(title: str) -> bool:
    """Whether a title ends as those of disambiguation pages do: `Mercury (disambiguation)`."""
    return title[-1:] in (")", "）") and bool(_TITLE.search(title))


# Headings of what articles append to their text, by language: the sections that hold no running text.
APPENDED_SECTIONS = {
    "en": """
        see also|references|external links|external link|further reading|notes|bibliography|sources|footnotes|citations|notes and references|
        references and notes|works cited|gallery|discography|filmography|publications|selected publications|
        selected bibliography|literature|notes and citations|endnotes|general references""",
    "de": "einzelnachweise|weblinks|literatur|siehe auch|quellen|anmerkungen|belege|fußnoten|werke|diskografie|filmografie|galerie|schriften|auswahl",
    "fr": """voir aussi|notes et références|références|notes|liens externes|lien externe|bibliographie|articles connexes|annexes|sources|liens internes|
        discographie|filmographie|galerie|publications""",
    "es": "véase también|referencias|enlaces externos|bibliografía|notas|notas y referencias|fuentes|discografía|filmografía|galería|obras",
    "it": "note|bibliografia|voci correlate|altri progetti|collegamenti esterni|riferimenti|discografia|filmografia|galleria d'immagini|opere",
    "pt": "ver também|referências|ligações externas|bibliografia|notas|notas e referências|discografia|filmografia|galeria|fontes",
    "nl": "zie ook|externe links|externe link|bronnen|literatuur|referenties|noten|bronnen, noten en/of referenties|voetnoten|discografie|filmografie|galerij",
    "pl": "zobacz też|przypisy|linki zewnętrzne|bibliografia|uwagi|dyskografia|filmografia|galeria",
    "ru": "см. также|примечания|ссылки|литература|источники|библиография|дискография|фильмография|галерея|сноски",
    "uk": "див. також|примітки|посилання|література|джерела|бібліографія|дискографія|фільмографія|галерея",
    "sv": "se även|referenser|externa länkar|källor|noter|litteratur|fotnoter|diskografi|filmografi|galleri|vidare läsning",
    "ja": "脚注|出典|参考文献|関連項目|外部リンク|注釈|注|関連文献|ディスコグラフィ|ギャラリー|参照|脚注・出典|出典・脚注",
    "zh": "参见|參見|参考文献|參考文獻|外部链接|外部連結|注释|註釋|参考资料|參考資料|延伸阅读|延伸閱讀|脚注|相关条目|相關條目|注解|註解|来源|來源",
    "ko": "같이 보기|각주|외부 링크|참고 문헌|참고문헌|주석|출처|바깥 고리|함께 보기",
    "ar": "انظر أيضا|انظر أيضًا|مراجع|المراجع|وصلات خارجية|مصادر|المصادر|هوامش|ملاحظات|روابط خارجية|معرض صور",
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
    """The headings of `languages` (all that are known, where none is given), in lower case."""
    chosen = [APPENDED_SECTIONS[language] for language in (languages or APPENDED_SECTIONS) if language in APPENDED_SECTIONS]
    return tuple(dict.fromkeys(name.strip() for text in chosen for name in text.replace("\n", "").split("|")))


_CODE = re.compile(r"([a-z]{2,3})(?:-.*)?")
_PROJECTS = "wiktionary|wikiquote|wikibooks|wikisource|wikinews|wikiversity|wikivoyage|wikidata|commons|species"
_DATABASE = re.compile(rf"(?:.*?)({_PROJECTS})(?:wiki)?")
_HOST = re.compile(rf"https?://(?:[\w-]+\.)*({_PROJECTS}|wikipedia)\.")

NO_PROSE = {
    "wiktionary": "its entries are numbered definitions, pronunciations and forms that templates write, of which nearly all would be dropped as list items",
    "wikiquote": "its quotations are items of lists, of which most would be dropped, and the rest have no text around them",
    "wikisource": "its works stand on pages of another namespace, which articles only include, so hardly a sentence would be left",
    "wikidata": "its pages are JSON, and all of them would be dropped as not_wikitext",
    "commons": "its pages describe files in templates, so hardly a sentence would be left",
    "species": "its pages are lists of names, so hardly a sentence would be left",
}
"""Wikis whose pages are no running text, and what would be lost of them."""


def language_code(name: str) -> str:
    """The ISO 639 code of `xml:lang` (`zh-Hans` is `zh`); empty for none."""
    found = _CODE.fullmatch(name.lower())
    return found[1] if found else ""


def project(dbname: str, base: str) -> str:
    """Which of Wikimedia's projects a dump is of, by `<dbname>` (`enwiktionary`) or else the host in `<base>`; empty where neither says."""
    found = _DATABASE.fullmatch(dbname.lower()) or _HOST.match(base.lower())
    return found[1] if found else ""
