"""Griffe extension: shows the parameter lists of this project's docstrings as lists.

    name:    what it is, and where it goes on
             it is indented.

Markdown would run these lines together.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

# "name:" or "name, other:", then two or more spaces.
_ENTRY = re.compile(r"^(?P<names>[A-Za-z_][\w.]*(?:, [\w.]+)*):(?P<gap> {2,})(?P<text>\S.*)$")


def as_lists(docstring: str) -> str:
    """Return the docstring with each entry of a parameter list as an item."""
    lines: list[str] = []
    inside = False
    for line in docstring.splitlines():
        entry = _ENTRY.match(line)
        if entry:
            names = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            if not inside and lines and lines[-1]:
                lines.append("")
            lines.append(f"- {names}: {entry['text']}")
            inside = True
        elif inside and line.startswith("  "):
            lines.append(f"    {line.strip()}")
        else:
            inside = inside and not line.strip()
            lines.append(line)
    return "\n".join(lines)


class ParameterLists(Extension):
    """Rewrite docstrings as they are loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_lists(obj.docstring.value)
