"""What an event is, and the one closed vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

VOCABULARY: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class Event:
    """A fact. Subclasses name it `noun.past-participle`; their fields end in their unit."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls, name: str) -> None:
        """Enter the subclass into the vocabulary; a name can be taken once."""
        if name in VOCABULARY:
            raise TypeError(f"event {name!r} is defined twice")
        cls.name = name
        VOCABULARY[name] = cls
