from __future__ import annotations

import pytest

from worker import packages


def test_what_is_missing_and_what_to_do_is_said() -> None:
    assert packages.missing(ModuleNotFoundError(name="aiohttp")).startswith("The Python package 'aiohttp' is missing: ")


@pytest.mark.parametrize("name", ["worker.novel", "bench", "handler"])
def test_a_part_of_ours_that_is_missing_is_a_mistake(name: str) -> None:
    mistake = ModuleNotFoundError(name=name)
    with pytest.raises(ModuleNotFoundError) as caught:
        packages.missing(mistake)
    assert caught.value is mistake
