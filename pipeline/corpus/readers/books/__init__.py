"""Reader of books as plain text, Markdown and EPUB; a document is a chapter.

Read reader.py first. Each of the other modules returns a `Book` (book_text.py) from one format.
"""
