"""Telephone numbers that a word announces, in every language that the page names, and what stays."""

from __future__ import annotations

import re
from pathlib import Path

import phonenumbers
import pytest
from phonenumbers import PhoneNumberFormat, PhoneNumberType

from cloze.pipeline.corpus.steps.personal_data import REGIONS, mask_text
from tests.slices import few

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "corpus.md"

# As people write it; {} is the number.
ANNOUNCED = {
    "ar": ["هاتف: {}", "الهاتف {}", "رقم الجوال: {}", "للتواصل اتصل على {}", "(تلفون {})"],
    "bg": ["Тел. {}", "тел.: {}", "Телефон за връзка: {}", "моб. {}", "GSM: {}"],
    "bn": ["ফোন: {}", "মোবাইল নম্বর {}", "টেলিফোন: {}।", "ফোন নম্বর: {}"],
    "ca": ["Telèfon: {}", "Tel. {}", "mòbil {}", "Truqueu al telèfon {}."],
    "cs": ["Tel.: {}", "telefon {}", "Mobil: {}", "telefonní číslo {}", "mob. {}"],
    "da": ["Tlf. {}", "Telefon: {}", "mobil {}", "Tlf.nr.: {}", "Ring på telefon {}"],
    "de": ["Tel.: {}", "Telefonnummer: {}", "Handy {}", "Mobil: {}", "Rufnummer {}", "Fax {}"],
    "el": ["Τηλ. {}", "τηλ.: {}", "Τηλέφωνο: {}", "Κινητό: {}", "τηλέφωνα επικοινωνίας {}"],
    "en": ["Tel: {}", "Call {}", "phone number {}", "Mobile: {}", "Phone ({})", "fax {}"],
    "es": ["Tel. {}", "Teléfono: {}", "móvil {}", "Celular: {}", "llame al teléfono {}", "Tfno. {}"],
    "et": ["Tel. {}", "telefon {}", "Mobiil: {}", "mob {}", "Telefoninumber: {}"],
    "fa": ["تلفن: {}", "شماره تلفن {}", "موبایل: {}", "تلفن همراه: {}", "تماس: {}"],
    "fi": ["Puh. {}", "puhelin: {}", "Puhelinnumero {}", "matkapuhelin {}", "GSM {}", "p. puh {}"],
    "fr": ["Tél. : {}", "téléphone : {}", "Tél {}", "portable : {}", "Mobile : {}", "Fax : {}"],
    "he": ["טלפון: {}", "טל' {}", "נייד {}", "בטלפון {}", "פקס: {}", "מספר הטלפון: {}"],
    "hi": ["फोन: {}", "फ़ोन नंबर {}", "मोबाइल नंबर: {}", "दूरभाष : {}", "टेलीफोन {}"],
    "hr": ["Tel. {}", "telefon: {}", "mobitel {}", "mob. {}", "Broj telefona: {}"],
    "hu": ["Tel.: {}", "Telefon: {}", "Telefonszám: {}", "mobil {}", "telefonon a {}"],
    "id": ["Telp. {}", "Telepon: {}", "HP {}", "No. telepon: {}", "WhatsApp {}", "Tlp: {}"],
    "it": ["Tel. {}", "telefono: {}", "cell. {}", "cellulare {}", "numero di telefono {}"],
    "ja": ["電話：{}", "電話番号は{}です", "携帯{}", "ＴＥＬ　{}", "TEL{}", "お電話（{}）まで"],
    "ko": ["전화 {}", "전화번호는 {}", "휴대폰: {}", "연락처 {}", "☎ {}", "TEL. {}"],
    "lt": ["Tel. {}", "telefonas {}", "mob. {}", "Mobilusis: {}", "telefono numeris {}"],
    "lv": ["Tālr. {}", "tālrunis: {}", "Tel. {}", "mob. tālr. {}", "Mobilais {}"],
    "mr": ["फोन: {}", "दूरध्वनी {}", "मोबाईल क्रमांक {}", "भ्रमणध्वनी: {}"],
    "nl": ["Tel. {}", "telefoon: {}", "Telefoonnummer {}", "mobiel {}", "gsm: {}"],
    "no": ["Tlf. {}", "telefon: {}", "mobil {}", "Ring telefon {}", "tlf {}"],
    "pl": ["tel. {}", "Telefon: {}", "tel. kom. {}", "kom. {}", "numer telefonu {}", "tel./fax {}"],
    "pt": ["Tel. {}", "telefone: {}", "Telemóvel {}", "celular {}", "ligue para o telefone {}"],
    "ro": ["Tel. {}", "telefon: {}", "Număr de telefon {}", "mobil {}", "Fax: {}"],
    "ru": ["Тел. {}", "телефон: {}", "моб. {}", "по телефону {}", "Телефон для справок: {}"],
    "sk": ["Tel.: {}", "telefón {}", "Mobil: {}", "telefónne číslo {}", "mob. {}"],
    "sl": ["Tel. {}", "telefon: {}", "GSM {}", "telefonska številka {}", "mobitel {}"],
    "sr": ["Тел. {}", "телефон: {}", "моб. {}", "број телефона {}", "telefon {}", "Mob. {}"],
    "sv": ["Tel. {}", "telefon: {}", "Tfn {}", "mobil {}", "Telefonnummer: {}", "mobilnr {}"],
    "ta": ["தொலைபேசி: {}", "கைபேசி {}", "மொபைல் எண் {}", "போன்: {}"],
    "te": ["ఫోన్: {}", "మొబైల్ నంబర్ {}", "ఫోన్ నెంబర్ {}"],
    "th": ["โทร. {}", "โทรศัพท์ {}", "โทร{}", "มือถือ: {}", "เบอร์โทรศัพท์: {}"],
    "tr": ["Tel: {}", "telefon {}", "Telefon numarası: {}", "GSM {}", "cep {}", "Cep telefonu: {}"],
    "uk": ["Тел. {}", "телефон: {}", "моб. {}", "за телефоном {}", "Дзвоніть {}"],
    "ur": ["فون: {}", "موبائل نمبر {}", "ٹیلی فون: {}", "رابطہ فون {}"],
    "vi": ["Điện thoại: {}", "ĐT: {}", "SĐT {}", "số điện thoại {}", "di động {}", "Hotline: {}"],
    "zh": ["电话：{}", "手机{}", "電話：{}", "联系电话（{}）", "电话号码是{}。", "请致电{}联系", "ＴＥＬ：{}"],
}  # fmt: skip
# Verbs, and words for contact.
CALLS = {
    "bg": "Обадете се на {}", "ca": "Truqueu al {}", "cs": "Volejte {}", "da": "Ring {}",
    "de": "Ruf an: {}", "el": "Καλέστε {}", "es": "Llame al {}", "et": "Helista {}",
    "fi": "Soita {}", "fr": "Appelez {}", "hi": "संपर्क करें: {}", "hr": "Nazovite {}",
    "hu": "Hívjon a {} számon", "id": "Hubungi {}", "it": "Chiama il {}", "ja": "お問い合わせ：{}",
    "ko": "문의: {}", "lt": "Skambinkite {}", "lv": "Zvaniet {}", "mr": "संपर्क: {}",
    "nl": "Bel {}", "no": "Ring {}", "pl": "Zadzwoń: {}", "pt": "Ligue {}", "ro": "Sunați la {}",
    "ru": "Звоните {}", "sk": "Zavolajte {}", "sl": "Pokličite {}", "sr": "Позовите {}",
    "sv": "Ring {}", "th": "ติดต่อ {}", "tr": "Bizi arayın: {}", "uk": "Дзвоніть {}",
    "ur": "رابطہ نمبر {}", "vi": "Gọi {}", "zh": "联系方式：{}",
}  # fmt: skip
for _language, _call in CALLS.items():
    ANNOUNCED[_language].append(_call)
NATIVE = {"ar": 0x660, "fa": 0x6F0, "ur": 0x6F0, "hi": 0x966, "mr": 0x966, "bn": 0x9E6, "th": 0xE50}
KINDS = (PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE)


def masked(text: str, language: str) -> str:
    return mask_text(text, {"phone": "<phone>"}, language)[0]


def with_digits(text: str, zero: int) -> str:
    return re.sub(r"[0-9]", lambda digit: chr(zero + int(digit[0])), text)


def written(language: str) -> set[str]:
    """Return example numbers of the language's countries, as their people write them."""
    found: set[str] = set()
    for region in REGIONS[language].replace("|", " ").split():
        for kind in KINDS:
            number = phonenumbers.example_number_for_type(region, kind)
            if number is not None:
                text = phonenumbers.format_number(number, PhoneNumberFormat.NATIONAL)
                found |= {text, re.sub(r"\D", "", text)}
                found.add(text.replace(" ", "\u00a0").replace("-", "\u2011"))
    found = {number for number in found if len(re.sub(r"\D", "", number)) > 6}
    if language in ("zh", "ja", "ko"):
        full_width = dict.fromkeys(map(chr, range(0x21, 0x7F)))
        found |= {
            "".join(chr(ord(sign) + 0xFEE0) if sign in full_width else sign for sign in number)
            for number in list(found)
        }
    if language in NATIVE:
        found |= {with_digits(number, NATIVE[language]) for number in list(found)}
    return found


@pytest.mark.parametrize(
    "language", few(sorted(REGIONS), "ar", "de", "en", "es", "fr", "hi", "ja", "ru", "zh")
)
def test_an_announced_number_is_masked(language):
    """In each form of announcement, of each country of the language, with each kind of digits."""
    numbers = sorted(written(language))
    left = [
        shown
        for form in ANNOUNCED[language]
        for number in numbers
        if (shown := masked(form.format(number), language)) != form.format("<phone>")
    ]
    assert not left, f"{len(left)} of {len(numbers) * len(ANNOUNCED[language])}: {left[:8]}"


def test_the_page_names_exactly_these_languages():
    listed = re.search(r"of these (\d+) languages: ([^.]*)\.", PAGE.read_text().replace("\n", " "))
    assert listed is not None
    assert listed[2].split() == sorted(REGIONS) == sorted(ANNOUNCED)
    assert int(listed[1]) == len(REGIONS)


STAY = [
    "1914-1918", "1990–1995", "12.10.2005", "12/10/2005", "2005-10-12", "1876, 1877, 1878", "12345678",
    "ISBN 978-3-16-148410-0", "ISBN 3-16-148410-0", "ISSN 1234-5678", "doi:10.1000/182.4567890",
    "13(3):385-412", "S. 1601–1610", "12 345 678", "1 234 567 890", "2.345.678", "1,234,567.89",
    "$1,234,567", "€ 1.234.567,89", "4:3 2:1 0:0", "900/1800/1900", "59.9139, 10.7522", "3.1415926535",
    "20230105123456", "10:20:30", "9780306406157", "2345678901", "(2005) 2006-2007", "1.2.3.4.5.6.7",
]  # fmt: skip


@pytest.mark.parametrize("language", sorted(REGIONS))
def test_other_numbers_stay(language):
    """Years, dates, prices, counts, pages, scores and book numbers that no word announces."""
    zero = NATIVE.get(language, ord("0"))
    texts = [*STAY, *(with_digits(text, zero) for text in STAY)]
    assert [
        text for text in texts if masked(f"({text}) x {text}.", language) != f"({text}) x {text}."
    ] == []


@pytest.mark.parametrize("language", sorted(REGIONS))
def test_dates_and_book_numbers_stay_after_an_announcing_word(language):
    numbers = [
        "1914-1918",
        "2005–2006",
        "22.10.2005",
        "2005-10-22",
        "ISBN 978-3-16-148410-0",
        "ISSN 2234-5678",
    ]
    for form in ANNOUNCED[language]:
        for number in numbers:
            assert masked(form.format(number), language) == form.format(number)


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("ru", "Тел. 89161234567", "Тел. <phone>"),
        ("zh", "电话：13800138000或手机13800138001", "电话：<phone>或手机<phone>"),
        ("zh", "聯絡電話：（０２）２３４５－６７８９", "聯絡電話：<phone>"),
        ("ja", "お問い合わせは電話（０３ー１２３４ー５６７８）へ", "お問い合わせは電話（<phone>）へ"),
        ("de", "Tel. 030 901820 / 030 901821, 0171 1234567", "Tel. <phone> / <phone>, <phone>"),
        ("ru", "тел.: +7 (495) 123-45-67, 8 (495) 765-43-21", "тел.: <phone>, <phone>"),
        ("fr", "Tél. 01 42 68 53 00 ou 06 12 34 56 78", "Tél. <phone> ou <phone>"),
        ("en", "Tel. 212-555-0123, population 2345678901", "Tel. <phone>, population 2345678901"),
        ("no", "Telefonselskapet hadde 22 345 678 kunder", None),
        ("en", "The telephone exchange served 12 345 678 lines", None),
        ("es", "El teléfono se usó en 1914-1918 y en 2005-2006", None),
        ("ar", "هاتف: ٠١٠ ٠١٢٣ ٤٥٦٧.", "هاتف: <phone>."),
        ("fa", "تلفن ۰۲۱-۸۸۷۷۶۶۵۵", "تلفن <phone>"),
        ("hi", "फ़ोन ०११-२३०१२३४५", "फ़ोन <phone>"),
        ("th", "โทร๐๒-๑๒๓-๔๕๖๗", "โทร<phone>"),
        ("ko", "전화번호는 02-2133-5678입니다", "전화번호는 <phone>입니다"),
    ],
)  # fmt: skip
def test_forms_of_announcement(language, text, expected):
    assert masked(text, language) == (expected or text)


TOKENS = {kind: f"<{kind}>" for kind in ("email", "iban", "card", "ip")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("info@xn--80ak6aa92e.xn--p1ai and почта@пример.рф", "<email> and <email>"),
        ("o'brien@example.com, d’arcy@example.fr.", "<email>, <email>."),
        ("ｔａｒｏ＠ｅｘａｍｐｌｅ．ｊｐ", "<email>"),
        ("Write to ann@example.com. Then wait… bob@example.org...", "Write to <email>. Then wait… <email>..."),
        ("ann at example dot com", "ann at example dot com"),
        ("::ffff:192.168.10.12, [2001:DB8::1]:443, fe80::1%eth0, 2001:db8::/32",
         "<ip>, [<ip>]:443, <ip>%eth0, <ip>/32"),
        ("версия 10.20.30.40, 版本10.20.30.40, versión 10.20.30.40, sürüm: 10.20.30.40", None),
        ("ＩＰ　１９２．１６８．１０．１２", "ＩＰ　<ip>"),
        ("４１１１　１１１１　１１１１　１１１１", "<card>"),
        ("4111\u00a01111\u00a01111\u00a01111; 4111\u20111111\u20111111\u20111111", "<card>; <card>"),
        ("FR14 20041 01005 0500013M026 06; DE89-3704-0044-0532-0130-00", "<iban>; <iban>"),
        ("NL91ABNA 0417164300 und DE89\u202f3704\u202f0044\u202f0532\u202f0130\u202f00", "<iban> und <iban>"),
        ("NO93 8601 1117 948, SE24 THE LAST OF 1234 5678 AND 9", None),
    ],
)  # fmt: skip
def test_other_kinds_in_other_forms(text, expected):
    assert mask_text(text, TOKENS)[0] == (expected or text)


# Contact lines as authorities and shops print them, with the numbers that name no telephone.
LINES = [
    (
        "de",
        "Stadtverwaltung Musterstadt, Rathausplatz 1, Telefon (0 62 21) 58-0, Telefax (0 62 21) 58-10 90 0",
        "Stadtverwaltung Musterstadt, Rathausplatz 1, Telefon <phone>, Telefax <phone>",
    ),
    (
        "de",
        "Öffnungszeiten: Mo-Fr 8:00-12:00 Uhr. Telefonisch erreichbar unter 089/23396 0 oder 115.",
        "Öffnungszeiten: Mo-Fr 8:00-12:00 Uhr. Telefonisch erreichbar unter <phone> oder 115.",
    ),
    (
        "fr",
        "Mairie de Lyon – 1 place de la Comédie – 69001 Lyon – Tél. 04 72 10 30 30 – Siret 216 901 231 00012",
        "Mairie de Lyon – 1 place de la Comédie – 69001 Lyon – Tél. <phone> – Siret 216 901 231 00012",
    ),
    (
        "ru",
        "ООО «Ромашка», ИНН 7707083893, КПП 770701001, р/с 40702810900000012345, тел./факс (495) 123-45-67, доб. 12",
        "ООО «Ромашка», ИНН 7707083893, КПП 770701001, р/с 40702810900000012345, тел./факс <phone>, доб. 12",
    ),
    (
        "ru",
        "г. Казань, ул. Баумана, д. 5, т. 8 (843) 292-00-00; e-mail: info@kazan.ru",
        "г. Казань, ул. Баумана, д. 5, т. <phone>; e-mail: <email>",
    ),
    (
        "zh",
        "地址：北京市海淀区中关村大街1号 邮编：100080 电话：010-62511234 传真：010-62511235 手机：139 1234 5678",
        "地址：北京市海淀区中关村大街1号 邮编：100080 电话：<phone> 传真：<phone> 手机：<phone>",
    ),
    (
        "zh",
        "客服热线：400-810-8888，24小时服务。QQ：123456789",
        "客服热线：<phone>，24小时服务。QQ：123456789",
    ),
    (
        "zh",
        "統一編號：12345678\u3000電話：(02)2720-8889分機1234\u3000傳真：02-27208890",
        "統一編號：12345678\u3000電話：<phone>分機1234\u3000傳真：<phone>",
    ),
    (
        "ja",
        "〒100-8111\u3000東京都千代田区千代田1-1\u3000TEL:03-3213-1111(代表)\u3000FAX:03-3213-1234\u3000営業時間9:00〜17:00",
        "〒100-8111\u3000東京都千代田区千代田1-1\u3000TEL:<phone>(代表)\u3000FAX:<phone>\u3000営業時間9:00〜17:00",
    ),
    (
        "ja",
        "フリーダイヤル 0120-123-456（受付時間 平日9時〜18時）、携帯電話からは０５７０－００－１２３４",
        "フリーダイヤル <phone>（受付時間 平日9時〜18時）、携帯電話からは<phone>",
    ),
    (
        "ko",
        "서울특별시 중구 세종대로 110 (우) 04524 대표전화 02-120 / 팩스 02-2133-0797 사업자등록번호 104-83-00469",
        "서울특별시 중구 세종대로 110 (우) 04524 대표전화 02-120 / 팩스 <phone> 사업자등록번호 104-83-00469",
    ),
    (
        "ar",
        "للاستفسار يرجى الاتصال على الرقم 0501234567 أو هاتف رقم ٠١١٢٣٤٥٦٧٨ فاكس 0112345679",
        "للاستفسار يرجى الاتصال على الرقم <phone> أو هاتف رقم <phone> فاكس <phone>",
    ),
    (
        "fa",
        "آدرس: تهران، خیابان ولیعصر، پلاک ۱۲، تلفن: ۰۲۱۸۸۷۷۶۶۵۵ - ۰۹۱۲۳۴۵۶۷۸۹",
        "آدرس: تهران، خیابان ولیعصر، پلاک ۱۲، تلفن: <phone> - <phone>",
    ),
    (
        "hi",
        "अधिक जानकारी के लिए मोबाइल नंबर 98765 43210 या हेल्पलाइन 1800-11-2345 पर संपर्क करें।",
        "अधिक जानकारी के लिए मोबाइल नंबर <phone> या हेल्पलाइन <phone> पर संपर्क करें।",
    ),
    (
        "th",
        "ติดต่อสอบถาม โทร 0 2345 6789 ต่อ 123 หรือ 081-234-5678",
        "ติดต่อสอบถาม โทร <phone> ต่อ 123 หรือ <phone>",
    ),
    (
        "he",
        "לפרטים: דני 052-1234567, משרד: 03-6123456, פקס 03-6123457, ת.ז. 123456782",
        "לפרטים: דני 052-1234567, משרד: <phone>, פקס <phone>, ת.ז. 123456782",
    ),
    (
        "pl",
        "ul. Marszałkowska 1, 00-624 Warszawa, tel. (22) 621 02 03, NIP 525-000-12-34, REGON 123456785",
        "ul. Marszałkowska 1, 00-624 Warszawa, tel. <phone>, NIP 525-000-12-34, REGON 123456785",
    ),
    (
        "tr",
        "Tel: 0 (212) 444 0 849 - 0212 455 13 00, Faks: 0212 512 77 10, Vergi No: 1234567890",
        "Tel: <phone> - <phone>, Faks: <phone>, Vergi No: 1234567890",
    ),
    (
        "pt",
        "Telefone: (11) 3091-3116 / 3091-3117; WhatsApp (11) 98765-4321; CNPJ 63.025.530/0001-04; CEP 05508-220",
        "Telefone: <phone> / 3091-3117; WhatsApp <phone>; CNPJ 63.025.530/0001-04; CEP 05508-220",
    ),
    (
        "es",
        "C/ Alcalá 45, 28014 Madrid. Telf.: 91 480 00 10 / 010. Fax: 91 480 00 11. NIF P2807900B",
        "C/ Alcalá 45, 28014 Madrid. Telf.: <phone> / 010. Fax: <phone>. NIF P2807900B",
    ),
    (
        "it",
        "P.IVA 00514490010 – Tel. centralino 011.442.1111 – cell. 335 1234567",
        "P.IVA 00514490010 – Tel. centralino <phone> – cell. <phone>",
    ),
    (
        "nl",
        "KvK 34366966, tel. 020 - 624 11 11 of 14 020 (ma-vr)",
        "KvK 34366966, tel. <phone> of 14 020 (ma-vr)",
    ),
    (
        "sv",
        "Org.nr 212000-0142. Växel: 08-508 00 000. Tfn 08-508 29 000, tfn vx 08/508 28 000",
        "Org.nr 212000-0142. Växel: <phone>. Tfn <phone>, tfn vx <phone>",
    ),
    (
        "fi",
        "Y-tunnus 0201256-6, puh. 09 310 1691 (vaihde), p. 040 123 4567, asiakaspalvelu puh: 0931011111",
        "Y-tunnus 0201256-6, puh. <phone> (vaihde), p. <phone>, asiakaspalvelu puh: <phone>",
    ),
    (
        "el",
        "ΑΦΜ 090000045, Τηλ: 210 3893400, 213-1500100, Φαξ 2103893401, κιν. 6912345678",
        "ΑΦΜ 090000045, Τηλ: <phone>, <phone>, Φαξ <phone>, κιν. <phone>",
    ),
    (
        "vi",
        "Mã số thuế: 0100109106. ĐT: (024) 3825 5566 - 0912 345 678, Fax: 024.38255567",
        "Mã số thuế: 0100109106. ĐT: <phone> - <phone>, Fax: <phone>",
    ),
    (
        "id",
        "Jl. Medan Merdeka Selatan 8-9, Telp. (021) 3823355, HP. 0812-3456-7890, NPWP 01.234.567.8-901.000",
        "Jl. Medan Merdeka Selatan 8-9, Telp. <phone>, HP. <phone>, NPWP 01.234.567.8-901.000",
    ),
    (
        "uk",
        "ЄДРПОУ 00032684, тел.: (044) 202-70-00, факс 044-279-87-22, моб.тел. 0671234567",
        "ЄДРПОУ 00032684, тел.: <phone>, факс <phone>, моб.тел. <phone>",
    ),
    (
        "bn",
        "ফোন: ০২-৯৫৫৮০৮০, মোবাইলঃ ০১৭১২-৩৪৫৬৭৮, পোস্ট কোড ১০০০",
        "ফোন: <phone>, মোবাইলঃ <phone>, পোস্ট কোড ১০০০",
    ),
    (
        "en",
        "Reg. charity 1234567. Tel +44 (0)20 7946 0000 ext. 123; mob. 07700 900123; VAT GB 123 4567 89; ORCID 0000-0002-1825-0097",
        "Reg. charity 1234567. Tel <phone> ext. 123; mob. <phone>; VAT GB 123 4567 89; ORCID 0000-0002-1825-0097",
    ),
    (
        "en",
        "Call us toll-free at 1-800-FLOWERS or 1-800-356-9377. SSN 078-05-1120. Flight 1234-5678.",
        "Call us toll-free at 1-800-FLOWERS or <phone>. SSN 078-05-1120. Flight 1234-5678.",
    ),
]


@pytest.mark.parametrize(("language", "text", "expected"), LINES)
def test_contact_lines(language, text, expected):
    assert mask_text(text, TOKENS | {"phone": "<phone>"}, language)[0] == expected
