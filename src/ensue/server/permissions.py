"""Users: their credentials, and the topics they may publish and subscribe to.

A user authenticates by a token, or by a certificate that TLS has verified. Tokens are 256 random
bits, and the server stores a salted SHA-256 of each. That is enough: a slow hash (scrypt) makes
guessing a chosen password expensive, and 256 random bits can't be guessed at any speed. A token is
compared with every user's, in constant time each, so that the duration does not reveal whether it
matches one.

On a server with users, clients without a login are rejected, and a user needs a permission for each
topic: `publish` and `subscribe` are lists of topics, of prefixes with everything below (`audit.*`),
or `*`.
"""

import hmac
import re
from hashlib import sha256
from secrets import token_bytes, token_urlsafe
from typing import Any, Literal

import msgspec

from ensue.core.errors import ConfigurationError
from ensue.core.event import Name

__all__ = ["Access", "Action", "Grants", "User", "certificate_names", "new_token"]

Action = Literal["publish", "subscribe"]

TOKEN_BYTES = 32
SALT_BYTES = 16
PREFIX = "ensue_"
"""Prefix of tokens, so that secret scanners recognize them."""

_STORED = re.compile(r"sha256:(?:[0-9a-f]{2}){4,64}:[0-9a-f]{64}")
_PATTERN = re.compile(r"\*|[^*]+\.\*|[^*]+")


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One user: credentials and permissions."""

    token: str = ""
    """`sha256:SALT:HASH`, as `ensue token` prints it."""
    certificate: str = ""
    """A name in the certificate: its common name, or one of its DNS names."""
    publish: tuple[Name, ...] = ()
    subscribe: tuple[Name, ...] = ()


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """All users; without any, every client may connect and do everything."""

    users: dict[str, User] = {}
    station_secret: str = ""
    """The secret by which the servers of the chain authenticate each other."""
    station_certificates: bool = False
    """Whether a certificate for a server's name or host authenticates it."""

    def __post_init__(self) -> None:
        for name, user in self.users.items():
            if not name:
                raise ConfigurationError("users: the name of a user is empty: name the user")
            if not user.token and not user.certificate:
                raise ConfigurationError(
                    f"users.{name}: a user needs a token or a certificate: add token, which "
                    f"`ensue token {name}` prints, or certificate"
                )
            if user.token and not _STORED.fullmatch(user.token):
                raise ConfigurationError(
                    f"users.{name}.token: expected sha256:SALT:HASH, as `ensue token {name}` "
                    "prints it; the token itself does not belong here"
                )
            for pattern in (*user.publish, *user.subscribe):
                if not _PATTERN.fullmatch(pattern):
                    raise ConfigurationError(
                        f'users.{name}: {pattern!r} is not a pattern; expected a topic, "prefix.*" '
                        'or "*"'
                    )
        certificates = [user.certificate for user in self.users.values() if user.certificate]
        if len(set(certificates)) != len(certificates):
            raise ConfigurationError(
                "users: two users have the same certificate: give each its own"
            )

    def user_of(self, token: str, names: tuple[str, ...]) -> str | None:
        """Return the user of a token or of the names in a certificate; None if unknown."""
        if token:
            found = None
            for name, user in self.users.items():
                # No early exit: see the module's docstring.
                if user.token and _matches(token, user.token):
                    found = name
            return found
        for name, user in self.users.items():
            if user.certificate and user.certificate in names:
                return name
        return None

    def is_station(self, token: str, names: tuple[str, ...], expected: tuple[str, ...]) -> bool:
        """Return whether the credentials are those of the server with these names."""
        known = hmac.compare_digest(token.encode(), self.station_secret.encode())
        if self.station_secret and known:
            return True
        return self.station_certificates and any(name in names for name in expected)


class Grants:
    """The permissions of one user, prepared for a fast check of every event."""

    __slots__ = ("_all", "_prefixes", "_topics", "readable", "user")

    def __init__(self, user: str, permissions: User | None) -> None:
        self.user = user
        """Empty on a server without users."""
        self.readable = None if permissions is None else permissions.subscribe
        """The patterns it may subscribe to; None for all topics."""
        self._topics: dict[Action, frozenset[str]] = {}
        self._prefixes: dict[Action, tuple[str, ...]] = {}
        self._all: dict[Action, bool] = {
            "publish": permissions is None,
            "subscribe": permissions is None,
        }
        if permissions is not None:
            self._add("publish", permissions.publish)
            self._add("subscribe", permissions.subscribe)

    def may(self, action: Action, topic: str) -> bool:
        """Return whether the user may publish on, or subscribe to, a topic."""
        return (
            self._all[action]
            or topic in self._topics[action]
            or topic.startswith(self._prefixes[action])
        )

    @property
    def may_all(self) -> bool:
        """Whether the user may publish and subscribe to everything."""
        return all(self._all.values())

    @property
    def any(self) -> bool:
        """Whether the user may publish or subscribe at all."""
        return any(self._all.values()) or any((*self._topics.values(), *self._prefixes.values()))

    def _add(self, action: Action, patterns: tuple[str, ...]) -> None:
        self._all[action] = "*" in patterns
        self._topics[action] = frozenset(each for each in patterns if not each.endswith("*"))
        # "audit.*" matches all topics that begin with "audit.", at any depth.
        self._prefixes[action] = tuple(each[:-1] for each in patterns if each.endswith(".*"))


def new_token() -> tuple[str, str]:
    """Return a new token, and its hash for the server."""
    token = PREFIX + token_urlsafe(TOKEN_BYTES)
    salt = token_bytes(SALT_BYTES).hex()
    return token, f"sha256:{salt}:{_hash(salt, token)}"


def certificate_names(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a certificate that TLS has verified."""
    if not certificate:
        return ()
    subject = (pair for group in certificate.get("subject", ()) for pair in group)
    names = [value for kind, value in subject if kind == "commonName"]
    others = certificate.get("subjectAltName", ())
    names += [value for kind, value in others if kind in ("DNS", "IP Address")]
    return tuple(dict.fromkeys(names))


def _hash(salt: str, token: str) -> str:
    return sha256(bytes.fromhex(salt) + token.encode()).hexdigest()


def _matches(token: str, stored: str) -> bool:
    _, salt, expected = stored.split(":")
    return hmac.compare_digest(_hash(salt, token), expected)
