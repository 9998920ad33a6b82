"""Prompt templates in Go's form: whether one is plainly broken; pure."""

from __future__ import annotations

import re

# One action up to its end: a comment, or strings and whatever is no brace.
_ACTION = re.compile(
    r"""(?P<body>-?\s*/\*.*?\*/\s*-?|(?!-?\s*/\*)(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`[^`]*`|[^"'`{}])*)}}""",
    re.DOTALL,
)
_WORD = re.compile(r"\w*", re.ASCII)
_OPENING = frozenset({"if", "range", "with", "block", "define"})
_SHOWN_CHARS = 40


class TemplateInvalid(ValueError):
    """The server would not take the template; the message says what is wrong with it."""


def require_balanced(text: str) -> None:
    """Raise TemplateInvalid when an action or a block is not closed, or a block is closed that is not open."""
    opened: list[str] = []
    _, mark, rest = text.partition("{{")
    while mark:
        action = _ACTION.match(rest)
        if action is None:
            raise TemplateInvalid(f"the template's {'{{' + rest[:_SHOWN_CHARS]!r} is not closed: it needs its }}}}")
        word = _WORD.match(action["body"].lstrip("- \t\r\n"))
        name = word[0] if word else ""
        if name in _OPENING:
            opened.append(name)
        elif name == "end" and not opened:
            raise TemplateInvalid("the template has an {{ end }} too many: no block is open there")
        elif name == "end":
            opened.pop()
        _, mark, rest = rest[action.end() :].partition("{{")
    if opened:
        raise TemplateInvalid(f"the template's {{{{ {opened[-1]} }}}} is not closed: it needs an {{{{ end }}}}")
