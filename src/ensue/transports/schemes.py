"""URL schemes and their transports. Client libraries of brokers are imported on use."""

from collections.abc import Callable
from typing import Any

import msgspec

from ensue.core.errors import BadInput
from ensue.transports.base import Capabilities
from ensue.transports.brokers.base import CAPABILITIES
from ensue.transports.carrier import Carrier
from ensue.transports.memory import MemoryOptions
from ensue.transports.tcp.options import TcpOptions

__all__ = ["BROKERED", "BROKERS", "SERVED", "BrokerOptions", "Options", "parse_url"]


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of a broker, and a factory of its carrier."""

    url: str
    """Without password or token, for errors and logs."""
    scheme: str
    given: Any
    """The options of this kind of broker, including `prefix`."""
    carrier: Callable[[Any], Carrier]

    def make(self, space: str = "") -> Carrier:
        """Return a new carrier; `space` extends the prefix of its names."""
        if not space:
            return self.carrier(self.given)
        prefix = f"{self.given.prefix}:{space}"  # Chosen prefixes have no colon.
        return self.carrier(msgspec.structs.replace(self.given, prefix=prefix))

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of stations on the broker: they keep the logs."""
        return msgspec.structs.replace(
            CAPABILITIES,
            durable=True,
            replay=True,
            conditional=True,
        )


Options = MemoryOptions | TcpOptions | BrokerOptions


def _nats(url: str) -> tuple[Any, Callable[[Any], Carrier]]:
    from ensue.transports.brokers.nats import NatsCarrier, NatsOptions  # noqa: PLC0415 - an extra

    return NatsOptions.parse(url), NatsCarrier


def _redis(url: str) -> tuple[Any, Callable[[Any], Carrier]]:
    from ensue.transports.brokers.redis import (  # noqa: PLC0415 - an extra
        RedisCarrier,
        RedisOptions,
    )

    return RedisOptions.parse(url), RedisCarrier


def _mqtt(url: str) -> tuple[Any, Callable[[Any], Carrier]]:
    from ensue.transports.brokers.mqtt import MqttCarrier, MqttOptions  # noqa: PLC0415 - an extra

    return MqttOptions.parse(url), MqttCarrier


def _amqp(url: str) -> tuple[Any, Callable[[Any], Carrier]]:
    from ensue.transports.brokers.amqp import AmqpCarrier, AmqpOptions  # noqa: PLC0415 - an extra

    return AmqpOptions.parse(url), AmqpCarrier


BROKERS: dict[str, Callable[[str], tuple[Any, Callable[[Any], Carrier]]]] = {
    "nats": _nats,
    "redis": _redis,
    "mqtt": _mqtt,
    "amqp": _amqp,
}


BROKERED = f"a broker: {', '.join(f'{each}://' for each in BROKERS)}"
SERVED = f"ensue://HOST:PORT, or {BROKERED}"
_ANY = f"memory://, memory://NAME, {SERVED}"


def parse_url(url: str, *, expected: str = _ANY) -> Options:
    """Parse a URL; raise `BadInput` with the `expected` schemes if it is wrong."""
    if not isinstance(url, str):
        raise BadInput(f"a URL must be a str such as 'memory://', got {type(url).__name__}")
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "memory":
        return MemoryOptions.parse(url)
    if separator and scheme == "ensue":
        return TcpOptions.parse(url)
    if separator and scheme in BROKERS:
        given, carrier = BROKERS[scheme](url)
        return BrokerOptions(url=given.address.url, scheme=scheme, given=given, carrier=carrier)
    # The rest of the URL may hold a password.
    shown = f"{scheme}://" if separator else url
    plain = scheme.removesuffix("s")
    if separator and plain in ("ensue", *BROKERS):
        raise BadInput(f"no transport for {shown!r}; for TLS write {plain}://HOST?tls=1")
    raise BadInput(f"no transport for {shown!r}; expected {expected}")
