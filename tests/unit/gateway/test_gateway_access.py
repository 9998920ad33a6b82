from __future__ import annotations

import pytest
from multidict import CIMultiDict

from worker.gateway.access import Access

KEY = "a key: ü"
PAGE = "https://a.example"


def headers(**given: str) -> CIMultiDict[str]:
    return CIMultiDict({name.replace("_", "-"): value for name, value in given.items()})


@pytest.mark.parametrize(
    "sent",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer   {KEY} "},
        {"X_Api_Key": KEY},
        {"x_api_key": KEY, "Authorization": "Bearer of the platform"},
    ],
)
def test_the_key_opens(sent: dict[str, str]) -> None:
    assert Access(KEY, None).allows(headers(**sent))


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"Authorization": ""},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"Authorization": f"Bearer {KEY.upper()}"},
        {"Authorization": "Bearer \udcff"},
        {"X_Api_Key": "", "Authorization": f"Bearer{KEY}"},
    ],
)
def test_nothing_else_does(sent: dict[str, str]) -> None:
    assert not Access(KEY, None).allows(headers(**sent))


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_everyone_may_call(key: str | None) -> None:
    assert Access(key, None).allows(headers())
    assert Access(key, None).allows(headers(Authorization="Bearer whatever"))


def test_no_page_may_call_unless_it_is_named() -> None:
    for access in (Access(None, None), Access(None, "https://b.example, http://a.example")):
        assert access.cors(headers(Origin=PAGE)) == {}
        assert access.preflight(headers(Origin=PAGE)) == {}


@pytest.mark.parametrize("origins", [PAGE, f"https://b.example, {PAGE}/"])
def test_a_named_page_may_call(origins: str) -> None:
    access = Access(KEY, origins)
    assert access.cors(headers(Origin=PAGE)) == {"Access-Control-Allow-Origin": PAGE, "Vary": "Origin"}
    asked = access.preflight(headers(Origin=PAGE))
    assert asked["Access-Control-Allow-Origin"] == PAGE
    assert "Authorization" in asked["Access-Control-Allow-Headers"]
    assert access.cors(headers()) == {}


def test_a_star_is_every_page() -> None:
    assert Access(None, "*").cors(headers(Origin="null"))["Access-Control-Allow-Origin"] == "*"
