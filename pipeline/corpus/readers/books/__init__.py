"""Reader of books as plain text, Markdown and EPUB; a document is a chapter.

Read reader.py first. book_text.py (plain text, with gutenberg.py) and markup.py (Markdown, EPUB)
return a `Book`.
"""
