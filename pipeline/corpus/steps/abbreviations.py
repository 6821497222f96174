"""Corpus stage: what sentencex does not know about abbreviations, by language. Lists of our own; without the final period.

TITLES stand before a name or another word, whatever its case: no sentence ends after one.
LEADS_ON stand before a number, a bracket or a small letter: there no sentence ends, before a capital one may.
"""

from __future__ import annotations

TITLES = {
    "de": "bzgl bspw evtl ggf inkl insb i.d.R o.ä vgl z.Hd Hr Hrn Fr Frl Prof Dr Ing Dipl Mag St Str geb gest Abt Abs "
    "Bd Hrsg zzgl Mio Mrd u.a v.a s.a d.h z.B i.A",
    "fr": "M MM Mme Mmes Mlle Mlles Me Mgr Dr Drs Pr St Ste Sts Cie av apr env art éd hab cf vol chap fig bd boul réf "
    "p.ex c.-à-d",
    "es": "Sr Sra Sres Srta D Dña Dr Dra Dres Ud Uds Vd Vds Prof Profa Lic Ing Arq Gral Cnel Cap Sto Sta Fr Mons Excmo "
    "Ilmo aprox núm art pág págs vol cap fig av Avda c p.ej",
    "it": "sig sigg sig.ra sig.na dott dott.ssa prof prof.ssa avv ing arch geom on rev mons gen col cap sen pag pagg "
    "art artt vol cap fig n nn cfr ca spett gent p.es",
    "pt": "Sr Sra Srs Srta Dr Dra Drs Prof Profa Eng Arq Exmo Exma Gen Cel Cap D Sto Sta av art pág págs vol cap fig n "
    "núm aprox cf p.ex",
    "nl": "dhr mevr mw mej dr drs ing ir mr prof ds st jhr mgr o.a d.w.z m.n i.p.v t.o.v t.a.v bijv bv ca nr nrs blz "
    "vgl resp evt incl excl afb fig i.v.m a.u.b z.g s.v.p",
    "pl": "prof dr hab inż mgr lek ks św im ul al pl os gen płk kpt por np tzn tzw m.in nr str s t wyd zob por red tj "
    "woj pow gm ur zm",
    "ru": "г-н г-жа ул пр пл пер д корп кв им св см ср рис табл стр гл ст илл проф акад доц канд д-р ген полк кап тов "
    "гр род ум напр т.н т.е т.к",
    "uk": "вул пл пров буд кв ім св див рис табл стор с гл ст проф акад доц д-р ген полк нар напр т.зв тобто бл",
    "sv": "dr prof st bl.a t.ex s.k d.v.s ca resp inkl exkl nr fig kap jfr f.d fr.o.m t.o.m",
    "da": "dr prof hr fr st bl.a f.eks d.v.s dvs ca hhv inkl ekskl nr fig kap jf s.k pga mht",
    "no": "dr prof hr fr st bl.a f.eks dvs ca hhv inkl ekskl nr fig kap jf s.k pga mht",
    "cs": "dr prof doc ing mgr bc mudr judr phdr sv p ul nám tř č čís str s obr tab např tzv tj mj cca resp odst",
    "ar": "د أ م ص ج ق.م",
    "tr": "dr prof doç yrd av sn st mah cad sok bul no s örn bkz yy",
    "fi": "prof tri ks esim ns mm nk klo nro s kpl mrd milj",
    "hu": "dr prof özv ifj id st kb pl ún vö ld sz",
    "ro": "dl dna dra dr prof ing av str nr pag fig vol cap art cca ex",
    "el": "κ κα κκ δρ καθ αρ σελ βλ πρβλ λ.χ π.χ δηλ",
}
LEADS_ON = {
    "de": "ca bzw etc usw u max min Nr S Kap Abb Tab Art Jh Jhs sog sogen",
    "fr": "p pp n no nos env ca vs max min t ch col l",
    "es": "p pp n ca vs max min s ss a d",
    "it": "p pp ca vs max min sec",
    "pt": "p pp ca vs máx mín séc",
    "nl": "p pp vs max min e.v",
    "pl": "r w ww ok godz pkt tys mln mld poz art",
    "ru": "г гг в вв ок тыс млн млрд руб коп с п пп т тт №",
    "uk": "р рр ст тис млн млрд грн коп п пп т",
}

# A period after a number makes it an ordinal here: `3. Oktober`, `19. Jahrhundert`, `5. května`.
ORDINALS = frozenset({"de", "da", "no", "fi", "cs", "sk", "sl", "hr", "sr", "bs", "hu", "pl", "et", "lv", "is", "tr", "lb"})

# German writes the noun after an ordinal with a capital, so only a word that often begins a sentence ends one before it.
OPENERS = {
    "de": "Der Die Das Den Dem Des Ein Eine Einen Einem Einer Er Sie Es Wir Ich Ihr Man Dies Diese Dieser Dieses Diesem "
    "Diesen Jede Jeder Alle Viele Einige Andere "
    "In Im Am An Auf Aus Bei Beim Bis Durch Für Gegen Hinter Mit Nach Neben Ohne Seit Trotz Über Um Unter Von Vom "
    "Vor Während Wegen Zu Zum Zur Zwischen "
    "Aber Allerdings Als Also Auch Außerdem Bald Bereits Da Dabei Dadurch Dafür Daher Damals Damit Danach Dann "
    "Daraufhin Darin Daran Darauf Dazu Dennoch Denn Deshalb "
    "Doch Dort Ebenso Erst Heute Hier Hierbei Jedoch Jetzt Nachdem Nicht Noch Nun Nur Ob Obwohl Oder Schließlich "
    "Sein Seine Seinen Seiner Ihre Ihren So Sodann Somit Später Und "
    "Was Weil Weitere Wenn Wer Wie Wo Zudem Zuerst Zunächst Zugleich Unsere Mein Meine Kein Keine".split(),
}


def words(table: dict[str, str], language: str) -> frozenset[str]:
    """The words of a table for a language, in lower case; none for a language that is not there."""
    return frozenset(table.get(language, "").lower().split())
