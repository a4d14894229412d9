"""The permissions and topics of one sender."""

from ensue.server.permissions import Action, Grants

__all__ = ["Known", "Peer"]

Known = dict[Action, dict[str, str]]
"""By action and topic: why the topic is rejected; empty if it is permitted."""


class Peer:
    """One sender: its grants, and the topics it is attached to."""

    def __init__(self, *, known: Known | None = None) -> None:
        self.grants = Grants("", None)
        """Its permissions: everything, until a login narrows them."""
        self.known: Known = {"publish": {}, "subscribe": {}} if known is None else known
        self.attached: dict[str, dict[tuple[str, str], None]] = {}
        """By name: the stations, fan-outs or registries it listens at, and the topics there."""
        self.registered: dict[str, str] = {}
        """By name: the registry it is registered at. Only members of one registry exchange
        frames."""
