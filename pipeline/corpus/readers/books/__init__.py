"""Reader of books as plain text, Markdown and EPUB; a document is a chapter.

Read reader.py first. book_text.py (plain text) and markup.py (Markdown, EPUB) return a `Book`.
gutenberg.py, aozora.py and edges.py remove what stands around a text; headings.py finds chapters.
"""
