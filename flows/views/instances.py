"""Many nodes in few lines: in a large graph the instances of a section share one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MOST_LINES = 40  # of nodes by themselves
FEWEST = 3  # instances that are worth a line of their own together


def together(names: Iterable[str], sections: Mapping[str, str], apart: Iterable[str] = ()) -> dict[str, list[str]]:
    """Nodes by the line that they are in, in their order: a node's own name, or `finetune (250)` of a section's instances.

    Args:
        sections: of nodes; a node without one stands alone.
        apart: nodes that are worth a line of their own whatever comes.
    """
    listed, alone = list(names), set(apart)
    lines: dict[str, list[str]] = {}
    if len(listed) <= MOST_LINES:
        return {name: [name] for name in listed}
    by_section: dict[str, list[str]] = {}
    for name in listed:
        if name not in alone:
            by_section.setdefault(sections.get(name, name), []).append(name)
    for name in listed:
        same = by_section.get(sections.get(name, name), [])
        if name in alone or len(same) < FEWEST:
            lines[name] = [name]
        elif same[0] == name:
            lines[f"{sections[name]} ({len(same)})"] = same
    return lines
