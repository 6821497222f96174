"""Sources for tests, made as programs of other people would write them."""

from __future__ import annotations

import zipfile

SENTENCE = "It is a page about the towers of the town, and this is what it says of them."

PAGE = (
    "<!DOCTYPE html><html><head><title>The  Towers</title><script>var x = 1;</script></"
    "head><body><nav><ul><li><a href=/>Home</a></li></ul></nav>"
    f"<main><h1>Towers</h1><p>{SENTENCE}</p><p>There are <b>seven</b> of them &amp; all are old.</"
    f"p></main><footer>Imprint</footer></body></html>"
)


def record(
    number, body, kind="response", mime="application/http; msgtype=response", length=None, head=b""
):
    body = body.encode() if isinstance(body, str) else body
    lines = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:id-{number}>\r\n"
        f"WARC-Target-URI: http://x.org/{number}\r\n"
        f"Content-Type: {mime}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return lines.encode() + head + body + b"\r\n\r\n"


CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile '
    'full-path="{}"/></rootfiles></container>'
)


PACKAGE = (
    '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/'
    '"><metadata><dc:title>A  Book</dc:title></metadata>'
    "<manifest>{items}</manifest><spine>{spine}</spine></package>"
)


def page(title, text="It is an article.", ns="<ns>0</ns>", extra="", number=1, model="wikitext"):
    return (
        f"<page><title>{title}</title>{ns}<id>{number}</id>{extra}<revision><id>99</"
        f"id><model>{model}</model>"
        f'<text xml:space="preserve">{text}</text></revision></page>\n'
    )


HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" '
    'version="0.10"><siteinfo><namespaces>'
    '<namespace key="0" /><namespace key="4">Our Wiki</namespace></namespaces></siteinfo>\n'
)


def chapter(title, body):
    return (
        f'<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/'
        f'xhtml"><head><title>x</title></head><body><h1>{title}</h1>{body}</body></html>'
    )


def write_epub(path, chapters, order=None, extra=(), root="EPUB/package.opf"):
    """chapters: href -> XHTML; extra: properties of items that are in the spine and must not be
    read.
    """
    items = "".join(
        f'<item id="i{n}" href="{href}" media-type="application/xhtml+xml"/>'
        for n, href in enumerate(chapters)
    )
    items += "".join(
        f'<item id="x{n}" href="{href}" media-type="application/xhtml+xml" properties="{p}"/>'
        for n, (href, p) in enumerate(extra)
    )
    numbers = order if order is not None else range(len(chapters))
    spine = "".join(f'<itemref idref="x{n}"/>' for n in range(len(extra))) + "".join(
        f'<itemref idref="i{n}"/>' for n in numbers
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr("META-INF/container.xml", CONTAINER.format(root))
        archive.writestr(root, PACKAGE.format(items=items, spine=spine))
        for href, text in chapters.items():
            archive.writestr(href if href.startswith("/") else f"EPUB/{href}", text)
        for href, _ in extra:
            archive.writestr(f"EPUB/{href}", "<html><body><p>Not wanted.</p></body></html>")
    return path


def response(
    number, body=PAGE, mime="text/html; charset=utf-8", status="200 OK", more="", length=None
):
    body = body.encode() if isinstance(body, str) else body
    kind = f"Content-Type: {mime}\r\n" if mime else ""
    return record(number, f"HTTP/1.1 {status}\r\n{kind}{more}\r\n".encode() + body, length=length)
