"""The files of an event log. Only files that a commit lists are part of the log.

    _lock                                      held by the one writer (flock)
    _commits/00000000000000000007.json         what the 8th append added, or what a trim removed
    _checkpoints/00000000000000000063.json     the state after all commits up to this number
    topics/<topic>/<first offset>-<unique>.arrow

A segment holds rows of one topic in ascending offset order, as an Arrow file with LZ4 buffers. An
append writes and syncs its segments first, then creates one commit file under the next number.
Creating that file is atomic and never replaces one, so an append to many topics is visible as a
whole or not at all, whenever its process is killed. Files that no commit lists are garbage; the
next writer removes them.

Every `CHECKPOINT_EVERY` commits, the whole state is written once, so opening a log reads at most
two hundred small files. A commit is removed once a second checkpoint covers it.

HAZARD: the file system must have hard links and locks, and must not lie about syncing. If it does
not share locks between machines (some network mounts), two machines that write at once are detected
when the second one creates its commit file, not before.
"""

import fcntl
import os
import time
from hashlib import blake2b
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec

from ensue.core.errors import BadInput, LogDamaged, LogInUse

__all__ = ["Commit", "Layout", "Lock", "Segment", "State", "Token", "Topic", "log_folder"]

FORMAT = 1
"""Version of the files in `_commits` and `_checkpoints`; other versions are rejected."""
CHECKPOINT_EVERY = 64
LOCK_POLL_S = 0.05
_TOPIC_NAME_MAX = 200
"""File names may have 255 bytes; the folder of a longer topic is named by its hash."""
_TEMPORARY = ".unfinished-"

S = TypeVar("S", "Commit", "State")


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One file of rows."""

    topic: str
    file: str
    """Path relative to the log's directory."""
    first: int
    """Offset of the first row."""
    next: int
    """One more than the offset of the last row."""
    rows: int
    """Number of rows; with gaps, fewer than `next - first`."""
    batch_rows: int
    """Rows in each record batch but the last."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """Idempotency key of an append: a writer and the number of its batch."""

    writer: str
    batch: int


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One append or one trim."""

    format: int = FORMAT
    number: int
    segments: list[Segment] = []
    token: Token | None = None
    trims: dict[str, int] = {}
    """By topic, the first remaining offset."""
    published: dict[str, dict[str, int]] = {}
    """By publisher and topic, the highest `publisher_seq` in `segments`."""
    order: str = ""
    """The order of the run, as in traces; empty: not known."""


class Topic(msgspec.Struct, kw_only=True):
    """The offsets and segments of one topic."""

    first: int
    next: int
    segments: list[Segment] = []


class State(msgspec.Struct, kw_only=True):
    """The log after all commits up to a number."""

    format: int = FORMAT
    number: int = -1
    """Number of the last commit; -1 for none."""
    topics: dict[str, Topic] = {}
    tokens: dict[str, int] = {}
    """By writer, its last batch."""
    published: dict[str, dict[str, int]] = {}
    order: str = ""
    """The last order of a commit that names one."""

    def apply(self, commit: Commit) -> None:
        """Apply the next commit."""
        assert commit.number == self.number + 1
        self.number = commit.number
        self.order = commit.order or self.order
        for segment in commit.segments:
            topic = self.topics.get(segment.topic)
            if topic is None:
                topic = self.topics[segment.topic] = Topic(first=segment.first, next=segment.first)
            topic.segments.append(segment)
            topic.next = segment.next
        for name, first in commit.trims.items():
            topic = self.topics[name]
            topic.first = first
            topic.segments = [each for each in topic.segments if each.first >= first]
        if commit.token is not None:
            self.tokens[commit.token.writer] = commit.token.batch
        for publisher, numbers in commit.published.items():
            known = self.published.setdefault(publisher, {})
            for name, number in numbers.items():
                known[name] = max(number, known.get(name, 0))


def log_folder(source: str | Path) -> Path:
    """Return the directory of a log: `source`, or its `log/` for a recorded run."""
    inside = Path(source) / "log"
    return inside if (inside / "_commits").is_dir() else Path(source)


class Layout:
    """Names, reads and writes the files of one log. Holds no state."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commits = root / "_commits"
        self.checkpoints = root / "_checkpoints"
        self.topics = root / "topics"
        self.lock = root / "_lock"

    def exists(self) -> bool:
        """Return whether the directory holds a log."""
        return self.commits.is_dir()

    def create(self) -> None:
        """Create an empty log unless there is one."""
        if self.root.exists() and not self.root.is_dir():
            raise BadInput(f"{self.root} is a file: name a directory for the event log")
        occupied = self.root.is_dir() and not self.exists() and any(self.root.iterdir())
        if occupied:
            raise BadInput(f"{self.root} is not empty and holds no event log; name a new directory")
        for folder in (self.checkpoints, self.topics, self.commits):
            folder.mkdir(parents=True, exist_ok=True)
        sync_folder(self.root)

    def new_segment(self, topic: str, first: int) -> str:
        """Return a new segment's unique path, relative to the log."""
        folder = quote(topic, safe="").replace(".", "%2E")
        if len(folder) > _TOPIC_NAME_MAX:
            digest = blake2b(topic.encode(), digest_size=16).hexdigest()
            folder = f"{folder[: _TOPIC_NAME_MAX - 40]}-{digest}"
        return f"topics/{folder}/{first:020}-{uuid4().hex[:12]}.arrow"

    def commit_path(self, number: int) -> Path:
        """Return the path of a commit's file."""
        return self.commits / f"{number:020}.json"

    def write_commit(self, commit: Commit) -> None:
        """Create a commit's file atomically; raise `LogInUse` if it exists."""
        path = self.commit_path(commit.number)
        unfinished = self._write(path, msgspec.json.encode(commit))
        try:
            os.link(unfinished, path)
        except FileExistsError:
            raise LogInUse(
                f"another writer added commit {commit.number} to {self.root}: the file system "
                "does not enforce locks; close one writer",
                path=str(self.root),
            ) from None
        finally:
            unfinished.unlink()
        sync_folder(self.commits)

    def checkpoint_due(self, number: int) -> bool:
        """Return whether a checkpoint follows a commit."""
        return (number + 1) % CHECKPOINT_EVERY == 0

    def write_checkpoint(self, state: State) -> None:
        """Write the state, and remove commits that the previous checkpoint covers."""
        path = self.checkpoints / f"{state.number:020}.json"
        self._write(path, msgspec.json.encode(state)).replace(path)
        sync_folder(self.checkpoints)
        before = [number for number in self._numbers(self.checkpoints) if number < state.number]
        for number in before[:-1]:
            (self.checkpoints / f"{number:020}.json").unlink()
        for number in self._numbers(self.commits):
            if before and number <= before[-1]:
                self.commit_path(number).unlink()

    def load(self) -> State:
        """Load the newest checkpoint and the commits after it."""
        state = self._checkpointed(after=-1) or State()
        self.catch_up(state)
        later = [number for number in self._numbers(self.commits) if number > state.number]
        if later:
            self.catch_up(state)  # A writer may have created the commit since.
            if state.number < later[0] - 1:
                path = self.commit_path(state.number + 1)
                text = f"commit {path} is missing, but commit {later[0]} exists"
                raise LogDamaged(text, path=str(path))
        return state

    def catch_up(self, state: State) -> None:
        """Apply all commits after the state's."""
        while True:
            path = self.commit_path(state.number + 1)
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                newer = self._checkpointed(after=state.number)
                if newer is None:
                    return
                for name in State.__struct_fields__:
                    setattr(state, name, getattr(newer, name))
                continue
            commit = _decode(path, data, Commit)
            if commit.number != state.number + 1:
                text = f"{path} contains commit {commit.number}, expected {state.number + 1}"
                raise LogDamaged(text, path=str(path))
            state.apply(commit)

    def remove_garbage(self, state: State) -> None:
        """Remove files that no commit lists, left by killed writers."""
        named = {each.file for topic in state.topics.values() for each in topic.segments}
        for path in self.topics.rglob("*"):
            if path.is_file() and path.relative_to(self.root).as_posix() not in named:
                path.unlink()
        for folder in (self.commits, self.checkpoints):
            for path in folder.glob(f"{_TEMPORARY}*"):
                path.unlink()

    def _checkpointed(self, *, after: int) -> State | None:
        """Return the newest readable checkpoint after a commit."""
        for number in reversed(self._numbers(self.checkpoints)):
            if number <= after:
                return None
            path = self.checkpoints / f"{number:020}.json"
            try:
                state = _decode(path, path.read_bytes(), State)
            except FileNotFoundError:
                return self._checkpointed(after=after)  # A newer one replaced it.
            except LogDamaged:
                continue  # An older one and the commits since give the same state.
            return state
        return None

    def _numbers(self, folder: Path) -> list[int]:
        names = [path.stem for path in folder.iterdir() if path.suffix == ".json"]
        return sorted(int(name) for name in names if name.isdecimal() and len(name) == 20)

    def _write(self, path: Path, data: bytes) -> Path:
        """Write and sync a file under a temporary name; return that name."""
        unfinished = path.with_name(f"{_TEMPORARY}{uuid4().hex}")
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return unfinished


class Lock:
    """The writer's lock, held until it is released or the process dies.

    The file records whether the last writer released it; only if not, there may be garbage.
    """

    def __init__(self, path: Path, *, wait_s: float) -> None:
        self._file = path.open("a+b")
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    self._file.close()
                    raise LogInUse(
                        f"{path.parent} has a writer already: wait until it is closed, or write "
                        "to another directory",
                        path=str(path.parent),
                    ) from None
                time.sleep(LOCK_POLL_S)
        self._file.seek(0)
        self.left_clean = self._file.read() in (b"", b"closed")
        self._record(b"open")

    def release(self) -> None:
        """Release the lock after a clean shutdown."""
        if not self._file.closed:
            self._record(b"closed")
            self._file.close()

    def abandon(self) -> None:
        """Release the lock as a crash does: the next writer removes garbage."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _record(self, state: bytes) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(state)
        self._file.flush()


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its file names survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _decode(path: Path, data: bytes, kind: type[S]) -> S:
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise LogDamaged(f"{path} is damaged: {error}", path=str(path)) from None
    if found.format != FORMAT:
        raise BadInput(
            f"{path} has format {found.format}; this release reads format {FORMAT}: install a "
            "newer one"
        )
    return found
