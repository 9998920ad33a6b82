"""What a setting may be: text, flags, counts, seconds, and how blanks around them are read."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field

from worker.go_values import GO_FALSE, GO_TRUE
from worker.references import listed
from worker.template import require_balanced


def stripped(value: object) -> object:
    """Return text without the blanks around it."""
    return value.strip() if isinstance(value, str) else value


def as_list(value: object) -> object:
    """Return the items of text that is a list."""
    return listed(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(stripped), Field(min_length=1)]
List = Annotated[tuple[str, ...], BeforeValidator(as_list)]
Flag = Annotated[bool, BeforeValidator(stripped)]

# The server reads its truth values with Go's words, fewer than pydantic's; a value only one of them understands would
# make the worker believe what is not so.
_GO_WORDS = dict.fromkeys(GO_TRUE, True) | dict.fromkeys(GO_FALSE, False)


def _as_go(value: object) -> object:
    word = str(value).strip()
    if word not in _GO_WORDS:
        raise ValueError("should be 1 or 0")
    return _GO_WORDS[word]


def _balanced(text: str) -> str:
    require_balanced(text)
    return text


Template = Annotated[Text, AfterValidator(_balanced)]
GoFlag = Annotated[bool, BeforeValidator(_as_go)]
Port = Annotated[int, BeforeValidator(stripped), Field(ge=1, le=65535)]
WebPath = Annotated[str, BeforeValidator(stripped), Field(pattern=r"^/[^\s?#{}]*$")]
Count = Annotated[int, BeforeValidator(stripped), Field(ge=1)]
# Ten years stand for "no limit": sockets and locks refuse a wait of more than some centuries.
Seconds = Annotated[float, BeforeValidator(stripped), Field(gt=0, le=315_360_000)]


def setting(*names: str, default: Any = ..., text: str, secret: bool = False) -> Any:
    """Declare a field read from the first of `names` that is set; `text` is its row in the README."""
    return Field(default, validation_alias=AliasChoices(*names), description=text, repr=not secret)
