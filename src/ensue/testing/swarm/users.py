"""Users of simulated servers: their tokens and permissions."""

from hashlib import sha256

from ensue.client.content.session import CONTENT
from ensue.server.permissions import Access, User

__all__ = ["GUEST", "IDLER", "MEMBER", "OUTSIDER", "READER", "WRITER", "access", "content_access"]

GUEST, MEMBER, OUTSIDER = "guest-token", "member-token", "outsider-token"
READER, WRITER, IDLER = "reader-token", "writer-token", "idler-token"
_SALT = "00" * 16


def access(readable: tuple[str, ...] = ()) -> Access:
    """Return the users of a program on topics.

    A guest may publish nothing; `readable` is what an outsider may read, if there is one.
    """
    users = {
        "member": _user(MEMBER, ("*",), ("*",)),
        "guest": _user(GUEST, (), ("*",)),
    }
    if readable:
        users["outsider"] = _user(OUTSIDER, (), readable)
    return _chained(users)


def content_access() -> Access:
    """Return the users of a program by content: one without each permission, one without both."""
    return _chained(
        {
            "member": _user(MEMBER, ("*",), ("*",)),
            "reader": _user(READER, (), (CONTENT,)),
            "writer": _user(WRITER, (CONTENT,), ()),
            "idler": _user(IDLER, (f"{CONTENT}.*",), (f"{CONTENT}.*",)),
        }
    )


def _user(token: str, publish: tuple[str, ...], subscribe: tuple[str, ...]) -> User:
    return User(token=_stored(token), publish=publish, subscribe=subscribe)


def _stored(token: str) -> str:
    return f"sha256:{_SALT}:{sha256(bytes.fromhex(_SALT) + token.encode()).hexdigest()}"


def _chained(users: dict[str, User]) -> Access:
    secret = "chain"  # noqa: S105 - of the simulated servers
    return Access(users=users, station_secret=secret)
