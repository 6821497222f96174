"""Reader of rendered HTML: Wikimedia Enterprise dumps, and pages of any site.

Dumps with an article per line, archives of pages, and single pages enter. Documents leave, one per
article, as paragraphs of plain text by the rules of package encyclopedia/.

Read reader.py first. archive.py yields the files of archives and the metadata of articles. page.py
converts a page to paragraphs; element_roles.py distinguishes its text from other elements.
"""
