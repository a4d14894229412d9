"""Seals on stamps: proof that a server of the chain gave a stamp to its publisher.

Where the order of an event takes several servers, its publisher gets the stamp from the last of
them, and takes it to the one that keeps the topic's log. A seal is a MAC over the publisher, the
topic and the stamp, with a key that only the servers have.
"""

from hashlib import blake2b

import msgspec

from ensue.core.event import Stamp

__all__ = ["PROOF_BYTES", "stamp_proof"]

PROOF_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode


def stamp_proof(key: bytes, publisher: str, topic: str, stamp: Stamp) -> bytes:
    """Return the seal on the stamp of a publisher's event; empty without a key."""
    if not key:
        return b""
    content = _encode((publisher, topic, sorted(stamp.entries.items()), stamp.whole))
    return blake2b(content, key=key, digest_size=PROOF_BYTES).digest()
