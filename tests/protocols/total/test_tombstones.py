"""Tombstones: they survive restarts, and their number is bounded."""

import pytest

from ensue.protocols.total import tombstones
from ensue.protocols.total.tombstones import Tombstones


class Disk(dict[str, bytes]):
    def persist(self, key: str, value: bytes | None) -> None:
        if value is None:
            del self[key]
        else:
            self[key] = value

    def restored(self) -> Tombstones:
        again = Tombstones(self.persist)
        for key in sorted(self, key=lambda key: int(key.split("/")[1])):
            _, serial, name = key.split("/", 2)
            again.restore(int(serial), name, self[key])
        return again


def test_latest_tombstones_survive_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "TOMBSTONES_MAX", 2)
    disk = Disk()
    gone = Tombstones(disk.persist)
    for name in ("a", "b/c", "a"):
        gone.add(name, len(name))
    gone = disk.restored()
    gone.add("d", 7)
    gone = disk.restored()
    # "b/c" left before the others.
    assert [gone.take(name) for name in ("b/c", "a", "d")] == [0, 1, 7]
    assert disk == {}


def test_tombstone_is_consumed_once() -> None:
    disk = Disk()
    gone = Tombstones(disk.persist)
    gone.add("a", 5)
    assert (gone.take("a"), gone.take("a")) == (5, 0)


def test_tombstones_of_two_kinds_are_independent_and_lookup_changes_nothing() -> None:
    disk = Disk()
    gone, refused = Tombstones(disk.persist), Tombstones(disk.persist, "refused")
    gone.add("a", 5)
    refused.add("a", 7)
    assert sorted(disk) == ["gone/1/a", "refused/1/a"]
    assert (gone.find("a"), gone.find("a"), gone.find("b"), refused.take("a")) == (5, 5, 0, 7)
    assert sorted(disk) == ["gone/1/a"]
