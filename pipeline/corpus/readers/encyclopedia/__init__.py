"""Readers of MediaWiki dumps in any language, and of WikiExtractor's output.

Dumps (XML with wikitext, often compressed) and WikiExtractor's files enter. Documents leave, one
per article, as paragraphs of plain text. Documents from dumps also have the fields of infoboxes, if
requested.

Read dump.py first, then wikitext.py, which converts the wikitext of a page. mediawiki_xml.py
divides a dump into pages. elements.py, scripts.py, templates.py, infoboxes.py and blocks.py are the
steps of wikitext.py; template_functions.py and template_numbers.py belong to templates.py.
wikiextractor.py is a separate reader. mediawiki_names.txt and templates.txt are data: names by
language, and rules of templates. A lab reads rendered pages by the same rules.
"""
