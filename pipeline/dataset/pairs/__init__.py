"""From documents to segments: how text is cut into rows, and what the two halves of a row are to each other."""
