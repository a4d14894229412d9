"""Who may come in, and who may do what.

A user proves who it is by a token, or by a certificate that TLS has checked. Tokens are 256 random bits,
and of each the server is given a salted SHA-256 alone. That is enough: a slow hash (scrypt) makes
guessing what a person chose expensive, and nobody guesses 256 random bits, however fast the hash is. A
token that comes is compared with every user's, in constant time each, so that how long it takes does not tell
whether it is somebody's.

Once there is a user, whoever is none is turned away, and a user may do nothing but what it is given:
`publish` and `subscribe` are lists of topics, of prefixes with everything below (`audit.*`), or `*`.
"""

import hmac
import re
from hashlib import sha256
from secrets import token_bytes, token_urlsafe
from typing import Any, Literal

import msgspec

from ensue.errors import ConfigurationError
from ensue.event import Name

__all__ = ["Access", "Action", "Grants", "User", "certificate_names", "new_token"]

Action = Literal["publish", "subscribe"]

TOKEN_BYTES = 32
SALT_BYTES = 16
PREFIX = "ensue_"
"""What tokens begin with, so that they are known for what they are where they don't belong."""

_STORED = re.compile(r"sha256:(?:[0-9a-f]{2}){4,64}:[0-9a-f]{64}")
_PATTERN = re.compile(r"\*|[^*]+\.\*|[^*]+")


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How somebody proves who they are, and what they may do."""

    token: str = ""
    """`sha256:SALT:HASH`, as `ensue token` prints it."""
    certificate: str = ""
    """A name that stands in the certificate: its common name, or one of its DNS names."""
    publish: tuple[Name, ...] = ()
    subscribe: tuple[Name, ...] = ()


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Everybody who may come in; nobody named: everybody may, and do everything."""

    users: dict[str, User] = {}
    station_secret: str = ""
    """What the servers of the chain show each other."""
    station_certificates: bool = False
    """Whether a certificate for the name or the host of a server of the chain is enough."""

    def __post_init__(self) -> None:
        for name, user in self.users.items():
            if not name:
                raise ConfigurationError("users: a user has a name")
            if not user.token and not user.certificate:
                raise ConfigurationError(
                    f"users.{name}: nothing proves that somebody is {name}: add token, which "
                    f"`ensue token {name}` prints, or certificate"
                )
            if user.token and not _STORED.fullmatch(user.token):
                raise ConfigurationError(
                    f"users.{name}.token: expected sha256:SALT:HASH, as `ensue token {name}` prints "
                    "it; the token itself does not belong here"
                )
            for pattern in (*user.publish, *user.subscribe):
                if not _PATTERN.fullmatch(pattern):
                    raise ConfigurationError(
                        f'users.{name}: {pattern!r} is no pattern; expected a topic, "prefix.*" '
                        'or "*"'
                    )
        certificates = [user.certificate for user in self.users.values() if user.certificate]
        if len(set(certificates)) != len(certificates):
            raise ConfigurationError("users: two users show the same certificate")

    def user_of(self, token: str, names: tuple[str, ...]) -> str | None:
        """Return who somebody is, by a token or by the names in a certificate; None: nobody."""
        if token:
            found = None
            for name, user in self.users.items():
                # No early end: see the module's text.
                if user.token and _matches(token, user.token):
                    found = name
            return found
        for name, user in self.users.items():
            if user.certificate and user.certificate in names:
                return name
        return None

    def is_station(self, token: str, names: tuple[str, ...], expected: tuple[str, ...]) -> bool:
        """Tell whether somebody proves to be a server of the chain that has these names."""
        known = hmac.compare_digest(token.encode(), self.station_secret.encode())
        if self.station_secret and known:
            return True
        return self.station_certificates and any(name in names for name in expected)


class Grants:
    """What one user may do, ready to be asked for every event."""

    __slots__ = ("_all", "_prefixes", "_topics", "readable", "user")

    def __init__(self, user: str, rules: User | None) -> None:
        self.user = user
        """Empty where nobody is asked who they are."""
        self.readable = None if rules is None else rules.subscribe
        """The patterns of what it may subscribe to; None: everything."""
        self._topics: dict[Action, frozenset[str]] = {}
        self._prefixes: dict[Action, tuple[str, ...]] = {}
        self._all: dict[Action, bool] = {"publish": rules is None, "subscribe": rules is None}
        if rules is not None:
            self._add("publish", rules.publish)
            self._add("subscribe", rules.subscribe)

    def may(self, action: Action, topic: str) -> bool:
        """Tell whether the user may publish on a topic, or subscribe to it."""
        return (
            self._all[action]
            or topic in self._topics[action]
            or topic.startswith(self._prefixes[action])
        )

    @property
    def any(self) -> bool:
        """Whether the user may publish or subscribe at all."""
        return any(self._all.values()) or any((*self._topics.values(), *self._prefixes.values()))

    def _add(self, action: Action, patterns: tuple[str, ...]) -> None:
        self._all[action] = "*" in patterns
        self._topics[action] = frozenset(each for each in patterns if not each.endswith("*"))
        # "audit.*" is everything that begins with "audit.", at any depth.
        self._prefixes[action] = tuple(each[:-1] for each in patterns if each.endswith(".*"))


def new_token() -> tuple[str, str]:
    """Return a fresh token, and what the server is given of it."""
    token = PREFIX + token_urlsafe(TOKEN_BYTES)
    salt = token_bytes(SALT_BYTES).hex()
    return token, f"sha256:{salt}:{_hash(salt, token)}"


def certificate_names(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a certificate that TLS has checked."""
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
