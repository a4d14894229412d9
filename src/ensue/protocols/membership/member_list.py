"""The lists of a registry, with a digest of every prefix."""

from hashlib import blake2b

__all__ = ["MemberList"]


class MemberList:
    """Names by number, and the numbers of members that left; both only grow."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.gone: list[int] = []
        self._name_digests = [b""]
        """Of the first 0, 1, … names."""
        self._gone_digests = [b""]

    def add(self, name: str) -> None:
        """Give the next number to a name."""
        self.names.append(name)
        self._name_digests.append(_digest(self._name_digests[-1], name.encode()))

    def part(self, number: int) -> None:
        """Record that the member with a number has left."""
        self.gone.append(number)
        self._gone_digests.append(_digest(self._gone_digests[-1], b"%d" % number))

    def digest(self, names: int, gone: int) -> bytes | None:
        """Return the digest of the first entries of both lists; None if unknown."""
        if names > len(self.names) or gone > len(self.gone):
            return None
        return self._name_digests[names] + self._gone_digests[gone]


def _digest(before: bytes, item: bytes) -> bytes:
    return blake2b(before + item, digest_size=8).digest()
