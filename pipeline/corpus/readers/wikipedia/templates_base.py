"""What rules for templates are made of, in all languages.

A rule gets the template's positional arguments and its named ones, all of them already plain text.
"""

from __future__ import annotations

from collections.abc import Callable

Arguments = list[str]
Named = dict[str, str]
Rule = Callable[[Arguments, Named], str]

_TEXTS = ("text", "texte", "texto", "testo")


def first(arguments: Arguments, named: Named) -> str:
    """The first argument that is not empty."""
    return next((argument for argument in arguments if argument), "")


def second(arguments: Arguments, named: Named) -> str:
    """The second argument, or else the first."""
    return arguments[1] if len(arguments) > 1 else first(arguments, named)


def last(arguments: Arguments, named: Named) -> str:
    """The last argument."""
    return arguments[-1] if arguments else ""


def spaced(arguments: Arguments, named: Named) -> str:
    """All arguments."""
    return " ".join(argument for argument in arguments if argument)


def constant(text: str) -> Rule:
    """Always the same words."""
    return lambda arguments, named: text


def quoted(opening: str, closing: str) -> Rule:
    """A quotation inside a sentence."""

    def rule(arguments: Arguments, named: Named) -> str:
        text = next((named[name] for name in _TEXTS if named.get(name)), first(arguments, named))
        return f"{opening}{text}{closing}" if text else ""

    return rule


def block(arguments: Arguments, named: Named) -> str:
    """A quotation that is a paragraph of its own, with its translation."""
    text = next((named[name] for name in (*_TEXTS, "citation") if named.get(name)), first(arguments, named))
    translation = named.get("übersetzung", "")
    return f"\n\n{text}\n\n" + (f"{translation}\n\n" if translation else "")


def lines(arguments: Arguments, named: Named) -> str:
    """A list that a template shows in columns: `{{colonnes|nombre=4|1=* …}}`."""
    text = named.get("1") or named.get("content") or first(arguments, named)
    return f"\n{text}\n" if text else ""
