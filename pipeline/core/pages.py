"""Pages that are made of templates: one HTML file with everything inside, no script, nothing from the network."""

from __future__ import annotations

import functools
from pathlib import Path

import jinja2


@functools.cache  # compiling a template takes longer than filling it
def templates_in(directory: Path) -> jinja2.Environment:
    """HTML templates: everything is escaped, and a name that is not given is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(directory),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
