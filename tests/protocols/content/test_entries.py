"""Tables find advertisements by index, however many other clients have."""

from collections.abc import Callable
from typing import Any

import pytest

from ensue.protocols.content.entries import IndexedEntries
from ensue.protocols.content.frames import Change, Publication
from ensue.protocols.content.refusals import uncovered
from ensue.protocols.content.tables import Layer, Tables

OTHERS = 50


@pytest.mark.parametrize("layered", [False, True])
def test_publishing_and_subscribing_scan_no_advertisements(
    monkeypatch: pytest.MonkeyPatch, *, layered: bool
) -> None:
    below = Tables(("near", "far"))
    for number in range(OTHERS):
        hop = ("near", "far", "other")[number % 3]
        below.apply(Change("adv", f"a{number}", f"size = {number}"), hop)
    below.apply(Change("adv", "mine", "price exists"), "me")
    tables = Layer(below).tables if layered else below
    scans: list[str] = []

    def count(name: str) -> Callable[..., Any]:
        real = getattr(dict, name)

        def counted(self: IndexedEntries) -> Any:
            scans.append(name)
            return real(self)

        return counted

    for name in ("__iter__", "items", "keys", "values"):
        monkeypatch.setattr(IndexedEntries, name, count(name))
    published = Publication(publisher="me", number=1, attributes={"price": 3})
    assert uncovered(published, "me", tables, within=False) == ""
    assert uncovered(published, "other", tables, within=False) != ""
    assert list(tables.apply(Change("sub", "s", f"size = {OTHERS - 2}"), "me")) == ["near"]
    assert scans == []
    assert len(list(below.advertisements)) == OTHERS + 1
    assert scans == ["__iter__"], "a scan is noticed"
