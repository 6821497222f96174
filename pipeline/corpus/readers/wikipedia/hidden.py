"""Text that must not be read as markup, such as that of `<nowiki>`: its characters move to the private-use area and come back at the end."""

from __future__ import annotations

import re

_CHARACTERS = "[]{}|'=*#:;!<>_~&$-/"
_HIDE = {ord(character): 0xE100 + ord(character) for character in _CHARACTERS}
_SHOW = {hidden: plain for plain, hidden in _HIDE.items()}
_HIDDEN = re.compile("[\ue100-\ue1ff]")


def hide(text: str) -> str:
    """The text with what could be markup in it replaced."""
    return text.translate(_HIDE)


def show(text: str) -> str:
    """What was given to `hide`, wherever it is now."""
    return text.translate(_SHOW) if not text.isascii() and _HIDDEN.search(text) else text
