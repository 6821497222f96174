"""Books as plain text, EPUB and TEI; a document is a chapter."""
