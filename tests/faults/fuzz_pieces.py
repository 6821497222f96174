"""What the fuzzer puts together: words and marks of each kind of file."""

from __future__ import annotations

PROSE = "It was the best of times for all of the people in this town, and nobody knew the reason. "


WIKITEXT = (
    "{{ }} {| |} [[ ]] [ ] {{{ }}} { } | || |- |+ ! !! = == === ' '' ''' ''''' <!-- --> <ref> "
    "<ref|name=a> <ref|name=a/> </ref> <ref <references/> "
    "<code> </code> <tt> </tt> <nowiki> </nowiki> <nowiki/> <math> </math> <pre> </pre> <gallery> "
    "</gallery> <table> </table> <tr><td> <br <br> <br/> "
    "<sup> </sup> <sup>2</sup> <div> </div> <div|style= < > </ /> & &amp; &# &#x41; ; : * # ---- "
    "__ __TOC__ ~~~~ http:// https://x.org/ [http://a| "
    "[mailto: -{ }- -{a:b; #REDIRECT| [[File:a|thumb| [[a|b]] [[a]] [[:b|]] {{Infobox|a| "
    "{{Infobox|a|b=1}} {{IPA| {{IPA|x}} {{convert|1| {{lang|de| "
    '{{cite|web| {{x}} {{x| {{efn| {{flag| colspan=2 rowspan=999 colspan="1 style=" align=\''
).split(" ")


HTML = (
    "<p> </p> <div> </div> <article> </article> <main> <span> </span> <ul> <ol> <li> </li> <dl> "
    "<dt> <dd> <table> <tr> <td> </td> <th> </table> "
    "<td|colspan=40|rowspan=1000> <h1> <h2> </h2> <b> <i> <a|href=x> </a> <sup> <sup>2</sup> "
    "<math> <br> <hr> <pre> <code> </code> <!-- --> <![CDATA[ "
    "]]> <script> </script> <style> <svg> <form> <select><option> <frameset> <body> </body> <html> "
    "<head> <title> <section> <nav> <footer> <table|class=infobox> "
    "<div|class=mw-parser-output> <div|id=mw-content-text> <p|style=display:none> "
    "<span|class=reference> < > & &amp; &# &#0; &nbsp; &zwj; <?x <!x"
).replace("|", " ").split(" ")  # fmt: skip


TEXT = [
    " ", "\n", "\n\n", "\t", "\r", "\r\n", "\v", "\x85", "\u2028", "\u200b", "\u00ad", "\ufeff",
    "\0", "a", "A", "1", "é", "e\u0301", "हि", "字", "あ", "ก", "م", "İ", "ſ",
    "😀", "\ue0fa", "\ue0fb", "\ue0fc", "\ue15b", "\ufffd", "\ud7ff", "Ã©", "â€™", "Ð", ".", ". ",
    "! ", "?", "。", "…", ",", ", ", ";", ":", "-", "--", "—", "–", "_", "__",
    "'", '"', "“", "”", "«", "»", "‘", "’", "``", "''", "(", ")", "[", "]", "{", "}", "<", ">", "&",
    "@", "#", "$", "%", "*", "/", "\\", "|", "~", "+", "=",
    "a@", "a@b.c ", "a@b.org ", ".a", "@a.", "1.", "1.1", "1.2.3.4", "10.20.30.40 ", "::", ":a",
    "a:", "2001:db8::1 ", "+49 30 ", "030 ", "1-", "1 ", "(1)", "tel ",
    "+49 30 901820 ", "4111 1111 1111 1111 ", "4111", "DE89 3704 0044 0532 0130 00 ", "AB12 ",
    "AB12", "http://", "https://a.b/", "www.", "a.b", "Mr. ", "U.S. ", "e.g. ",
    "A. ", "i) ", "1) ", "He said: ", "the ", "The ", "word ", "Xx", "xX", "Word. ",
    "CHAPTER I\n\n", "* * *\n", "[Footnote 1: ", "[Illustration", "_a_", "_", "*** START OF ",
    "# ", "\n# ", "\n- ", "\n> ", ">", "\n1. ", "\n    ", "```", "\n```\n", "[a](", "![", "](b)",
    "[^1]", "\n[^1]: ", "`", "**", "~~", "|a|\n|-|\n", "\n---\n", "<b>", "</b>", "<div>\n",
    "\n===\n", "{#a}", "\n[a]: b\n", "\\[", "&lt;", "<a@b.c>", "<http://a>", PROSE,
]  # fmt: skip


CSV = [
    ",",
    '"',
    '""',
    "\n",
    "\r",
    "\r\n",
    "\t",
    ";",
    "a",
    " ",
    "\0",
    "'",
    "\\",
    "é",
    "\ufeff",
    '"a,b"',
    "1.5",
    "\u2028",
    PROSE,
]


JSON = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    '\\"',
    "\\u",
    "\\ud800",
    "null",
    "1",
    "1e999",
    "-",
    "true",
    '"text"',
    '{"text":',
    '"a"',
    " ",
    "\n",
    "\\",
    '{"id":1,"text":"a"}\n',
    PROSE,
]


XML = [
    "<p>", "</p>", "<div>", "</div>", "<note>", "</note>", "<lb/>", "<pb/>", "<l>", "<lg>", "<q>",
    "<choice>", "<sic>", "<corr>", "<list>", "<item>", "<table>", "<row>", "<cell>", "<head>",
    "<page>", "</page>", "<text>", "</text>", "<title>", "<id>1</id>", "<ns>", "<revision>",
    "<redirect/>", "<!--", "-->", "<![CDATA[", "]]>", "<?x ", "?>", "&amp;", "&lt;", "&#65;", "&x;",
    "&",
    "<", ">", '="', "'", "</TEI>", "<body>", "a", " ", "\n", "-\n", "\u00ad", PROSE,
]  # fmt: skip
