"""Reader of books as plain text, Markdown, EPUB and TEI; a document is a chapter."""
