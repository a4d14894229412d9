"""Threads: a client's operations within transactions, one after the other.

A client's operations within a transaction form a *thread*: one if it coordinates, and one for each
of its invitations. The next operation of a thread is sent when the previous one has been answered
(rule *thread* of Definition 6), however fast the application is. If one is refused, so are those
queued after it.
"""

import msgspec

from ensue.core.wire import Records
from ensue.protocols.content import frames as f
from ensue.protocols.content.client import ContentClient
from ensue.protocols.transactions import frames as t
from ensue.protocols.transactions.operations import OVER

__all__ = ["Threads"]


class _Thread(msgspec.Struct, array_like=True):
    """One thread."""

    count: int = 0
    busy: bool = False
    queue: list[int] = msgspec.field(default_factory=list)
    """Requests that wait for the one under way."""
    acted: bool = False
    """Whether an operation was accepted: then the home sends the end of the transaction."""
    made: list[str] = msgspec.field(default_factory=list)
    """Subscriptions that exist only if the transaction is committed."""
    began: str = ""
    """What the transaction was called until its name was known (`frames.begun_by`)."""


_RECORD = Records[dict[str, _Thread]](dict[str, _Thread])


class Threads:
    """The threads of one client."""

    def __init__(self, content: ContentClient) -> None:
        self._content = content
        self.open: dict[str, _Thread] = {}
        """By transaction and path of the invitation."""

    def record(self) -> bytes:
        """Return the threads as they are persisted."""
        return _RECORD.encode(self.open)

    def restore(self, record: bytes) -> None:
        """Restore the persisted threads."""
        self.open = _RECORD.decode(record)

    def begun(self, transaction: str, name: str) -> None:
        """Note the name of a transaction that has begun."""
        thread = self.open.pop(f"{transaction}|", None) or _Thread()
        thread.began = transaction
        self.open[f"{name}|"] = thread

    def named(self, transaction: str) -> str:
        """Return the name of a transaction, once it is known."""
        if not transaction.startswith(t.BEGUN):
            return transaction
        keys = (key for key, thread in self.open.items() if thread.began == transaction)
        return next(keys, f"{transaction}|").removesuffix("|")

    def is_busy(self, transaction: str, path: str) -> bool:
        """Return whether an operation of a thread is under way."""
        thread = self.open.get(f"{self.named(transaction)}|{path}")
        return thread is not None and thread.busy

    def next_path(self, transaction: str, within: str) -> str:
        """Return the path of the next operation of a thread."""
        thread = self.open.get(f"{transaction}|{within}")
        number = 1 if thread is None else thread.count + 1
        return f"{within}.{number}" if within else str(number)

    def send_request(self, frame: f.Operate | t.Invite) -> None:
        """Send an operation if it is regular or its thread is idle; otherwise queue it."""
        if not frame.transaction:
            self._content.send_request(frame)
            return
        thread = self.open.setdefault(self._key_of(frame), _Thread())
        thread.count += 1
        change = frame.change if isinstance(frame, f.Operate) else None
        makes = change is not None and change.action == f.SUBSCRIBE
        if change is not None and makes and change.name not in self._content.positions:
            thread.made.append(change.name)
        if not thread.busy:
            thread.busy = True
            self._content.send_request(frame)
        else:
            self._content.keep_request(frame)
            thread.queue.append(frame.number)

    def answered(self, asked: f.Operate | t.Invite, refused: str) -> None:
        """Send the next operation of a thread after an answer."""
        key = self._key_of(asked)
        thread = self.open.get(key)
        if thread is None:
            return
        change = asked.change if isinstance(asked, f.Operate) else None
        if not refused:
            thread.acted = True
        elif change is not None and change.name in thread.made:
            thread.made.remove(change.name)
            self._content.positions.pop(change.name, None)
        self._send_next(thread, refused)
        if refused == OVER and not thread.acted:
            del self.open[key]  # It began after the end: the home sends no `Ended` for it.

    def end(self, frame: t.Ended) -> None:
        """End the threads of a transaction; refuse operations that wait."""
        for key in [key for key in self.open if key.startswith(f"{frame.transaction}|")]:
            thread = self.open.pop(key)
            self._send_next(thread, frame.reason or OVER)
            for name in () if frame.committed else thread.made:
                self._content.positions.pop(name, None)

    def _send_next(self, thread: _Thread, refused: str) -> None:
        """Send the next operation of a thread, or refuse all if one was refused."""
        while refused and thread.queue:
            self._content.refuse_kept(thread.queue.pop(0), refused)
        thread.busy = bool(thread.queue)
        if thread.queue:
            self._content.send_kept(thread.queue.pop(0))

    def _key_of(self, frame: f.Operate | t.Invite) -> str:
        return f"{self.named(frame.transaction)}|{frame.path.rpartition('.')[0]}"
