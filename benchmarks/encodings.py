"""Measures which encodings of plain text are read, refused or mistaken.

    python -m benchmarks.encodings DIR [--characters 400]

DIR has files `LANGUAGE.txt` in UTF-8, such as udhr2 of NLTK's data (the Universal Declaration of
Human Rights). Each text is written in the encodings of its language and read again. Right: the same
text. Refused: the reader says so. Wrong: another text.
"""

from __future__ import annotations

import argparse
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cloze.pipeline.corpus.readers.base import ReadCounters, Slice
from cloze.pipeline.corpus.readers.plain_text import decode

ENCODINGS = {
    "pol ces slk hun hrv slv bos_latn hsb": "cp1250 iso8859-2 cp852 mac_latin2",
    "rus bul": "cp1251 koi8-r iso8859-5 cp866 mac_cyrillic",
    "ukr": "cp1251 koi8-u iso8859-5",
    "srp_cyrl mkd bel": "cp1251 iso8859-5",
    "deu fra spa por_PT ita swe dan nob nno fin isl cat glg eus fao gle": "cp1252 cp850 mac_roman",
    "nld eng afr ind ltz roh bre als": "cp1252",
    "ell_monotonic": "cp1253 iso8859-7 cp737",
    "tur": "cp1254 cp857",
    "heb": "cp1255 iso8859-8 cp862",
    "arb": "cp1256 iso8859-6",
    "lit lav est": "cp1257 iso8859-13 iso8859-4 cp775",
    "tha": "cp874",
    "jpn": "cp932 euc_jp iso2022_jp",
    "cmn_hans": "gb18030 gb2312 hz",
    "cmn_hant": "big5",
    "kor": "cp949 johab",
}


def texts(directory: Path, limit: int | None) -> Iterator[tuple[str, str, str]]:
    """Yield language, encoding and the text as far as the encoding has its characters."""
    for languages, encodings in ENCODINGS.items():
        for language in languages.split():
            path = directory / f"{language}.txt"
            if path.exists():
                text = unicodedata.normalize("NFC", path.read_text(encoding="utf-8"))
                text = text.partition("---")[2] or text  # after the head of udhr2
                for encoding in encodings.split():
                    known = text.encode(encoding, "ignore").decode(encoding)[:limit]
                    if not known.isascii():
                        yield language, encoding, known


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--characters", type=int, help="of each text (default: all)")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    begun, size = time.process_time(), 0
    for language, encoding, text in texts(args.directory, args.characters):
        file_slice = Slice(kind="text", name=language, path=language, size=0)
        data = text.encode(encoding)
        decoded = decode(data, ReadCounters(slice=file_slice, stop=False))
        outcome = "refused" if decoded is None else "right" if decoded == text else "wrong"
        counts[outcome] += 1
        size += len(data)
        if outcome != "right":
            print(f"{outcome}: {language} in {encoding}")
    seconds = time.process_time() - begun
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    print(f"{seconds / size * 1e6:.2f} CPU seconds a MB")


if __name__ == "__main__":
    main()
