"""The event log as files: what exists is what commits say, and nothing else.

    _lock                                      held by the one writer (flock)
    _commits/00000000000000000007.json         what the 8th append added, or what a trim took away
    _checkpoints/00000000000000000063.json     all that commits up to this one said
    topics/<topic>/<first offset>-<unique>.arrow

A segment holds rows of one topic by rising offset, as an Arrow file with LZ4 buffers. An append
writes its segments first, syncs them, and then creates one commit file under the next number.
Creating it is one step of the file system that never replaces a file, so that an append to many
topics is there as a whole or not at all, whenever its process is killed. Files that no commit names
are leftovers; the next writer removes them.

Every `CHECKPOINT_EVERY` commits the whole state is written once, so that opening a log reads two
hundred small files at most. Older commits are removed when the checkpoint after theirs is there.

HAZARD: the file system must have hard links and locks, and must not lie about syncing. On one that
keeps no locks between machines (some network mounts), two machines writing at once are caught
at the commit's name, not before.
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
"""Of what the files of `_commits` and `_checkpoints` mean; others are refused by number."""
CHECKPOINT_EVERY = 64
LOCK_POLL_S = 0.05
_TOPIC_NAME_MAX = 200
"""File systems take names of 255 bytes; a longer topic's folder is named by its hash."""
_TEMPORARY = ".unfinished-"

S = TypeVar("S", "Commit", "State")


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One file of rows."""

    topic: str
    file: str
    """Below the log's directory."""
    first: int
    """Offset of the first row."""
    next: int
    """One more than the offset of the last row."""
    rows: int
    """Fewer than the offsets where some are missing."""
    batch_rows: int
    """Rows in each of its record batches but the last."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """Which batch of a writer an append is: the same one is taken once."""

    writer: str
    batch: int


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What one append or one trim did."""

    format: int = FORMAT
    number: int
    segments: list[Segment] = []
    token: Token | None = None
    trims: dict[str, int] = {}
    """Topic to the first offset that is left."""
    published: dict[str, dict[str, int]] = {}
    """Publisher and topic to the highest number of an event in `segments`."""


class Topic(msgspec.Struct, kw_only=True):
    """What there is of one topic."""

    first: int
    next: int
    segments: list[Segment] = []


class State(msgspec.Struct, kw_only=True):
    """What all commits up to one said."""

    format: int = FORMAT
    number: int = -1
    """Of the last commit; -1: there is none."""
    topics: dict[str, Topic] = {}
    tokens: dict[str, int] = {}
    """Writer to its last batch."""
    published: dict[str, dict[str, int]] = {}

    def apply(self, commit: Commit) -> None:
        """Add what the next commit says."""
        assert commit.number == self.number + 1
        self.number = commit.number
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
    """Return where an event log lies: here, or below `log/` if this is a recorded run."""
    inside = Path(source) / "log"
    return inside if (inside / "_commits").is_dir() else Path(source)


class Layout:
    """The files of one log, by name. It keeps nothing in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commits = root / "_commits"
        self.checkpoints = root / "_checkpoints"
        self.topics = root / "topics"
        self.lock = root / "_lock"

    def exists(self) -> bool:
        """Tell whether there is a log here."""
        return self.commits.is_dir()

    def create(self) -> None:
        """Make an empty log, unless there is one."""
        if self.root.exists() and not self.root.is_dir():
            raise BadInput(f"{self.root} is a file; an event log is a directory")
        strange = self.root.is_dir() and not self.exists() and any(self.root.iterdir())
        if strange:
            raise BadInput(f"{self.root} is not empty and holds no event log; name a new directory")
        for folder in (self.checkpoints, self.topics, self.commits):
            folder.mkdir(parents=True, exist_ok=True)
        sync_folder(self.root)

    def new_segment(self, topic: str, first: int) -> str:
        """Return a name that no segment has had, relative to the log."""
        folder = quote(topic, safe="").replace(".", "%2E")
        if len(folder) > _TOPIC_NAME_MAX:
            digest = blake2b(topic.encode(), digest_size=16).hexdigest()
            folder = f"{folder[: _TOPIC_NAME_MAX - 40]}-{digest}"
        return f"topics/{folder}/{first:020}-{uuid4().hex[:12]}.arrow"

    def commit_path(self, number: int) -> Path:
        """Name a commit's file."""
        return self.commits / f"{number:020}.json"

    def write_commit(self, commit: Commit) -> None:
        """Create a commit's file in one step; it was not there before, or this fails."""
        path = self.commit_path(commit.number)
        unfinished = self._write(path, msgspec.json.encode(commit))
        try:
            os.link(unfinished, path)
        except FileExistsError:
            raise LogInUse(
                f"{self.root} got commit {commit.number} from another writer: the file system "
                "does not keep a second writer out",
                path=str(self.root),
            ) from None
        finally:
            unfinished.unlink()
        sync_folder(self.commits)

    def checkpoint_due(self, number: int) -> bool:
        """Tell whether a checkpoint follows a commit."""
        return (number + 1) % CHECKPOINT_EVERY == 0

    def write_checkpoint(self, state: State) -> None:
        """Write the whole state, and drop the commits that the checkpoint before this one holds."""
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
        """Read what there is."""
        state = self._checkpointed(after=-1) or State()
        self.catch_up(state)
        later = [number for number in self._numbers(self.commits) if number > state.number]
        if later:
            self.catch_up(state)  # Unless it has come meanwhile, a commit is missing.
            if state.number < later[0] - 1:
                path = self.commit_path(state.number + 1)
                raise LogDamaged(f"{path} is missing, and {later[0]} is there", path=str(path))
        return state

    def catch_up(self, state: State) -> None:
        """Add what has been committed since."""
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
                raise LogDamaged(f"{path} says that it is commit {commit.number}", path=str(path))
            state.apply(commit)

    def remove_garbage(self, state: State) -> None:
        """Remove every file that no commit names: what was left by writers that were killed."""
        named = {each.file for topic in state.topics.values() for each in topic.segments}
        for path in self.topics.rglob("*"):
            if path.is_file() and path.relative_to(self.root).as_posix() not in named:
                path.unlink()
        for folder in (self.commits, self.checkpoints):
            for path in folder.glob(f"{_TEMPORARY}*"):
                path.unlink()

    def _checkpointed(self, *, after: int) -> State | None:
        """Return the newest readable state beyond a commit."""
        for number in reversed(self._numbers(self.checkpoints)):
            if number <= after:
                return None
            path = self.checkpoints / f"{number:020}.json"
            try:
                state = _decode(path, path.read_bytes(), State)
            except FileNotFoundError:
                return self._checkpointed(after=after)  # A newer one has taken its place.
            except LogDamaged:
                continue  # An older one and the commits since say the same.
            return state
        return None

    def _numbers(self, folder: Path) -> list[int]:
        names = [path.stem for path in folder.iterdir() if path.suffix == ".json"]
        return sorted(int(name) for name in names if name.isdecimal() and len(name) == 20)

    def _write(self, path: Path, data: bytes) -> Path:
        """Write a file under a temporary name, and return it once it is synced."""
        unfinished = path.with_name(f"{_TEMPORARY}{uuid4().hex}")
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return unfinished


class Lock:
    """The right to write: one process has it, until it lets go or dies.

    The file says whether the last one let go, so that only after a death there is garbage to
    look for.
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
                        f"{path.parent} has a writer already, and an event log takes one at a "
                        "time: wait until it is closed, or write to another directory",
                        path=str(path.parent),
                    ) from None
                time.sleep(LOCK_POLL_S)
        self._file.seek(0)
        self.left_clean = self._file.read() in (b"", b"closed")
        self._say(b"open")

    def release(self) -> None:
        """Let the next one write."""
        if not self._file.closed:
            self._say(b"closed")
            self._file.close()

    def abandon(self) -> None:
        """Let go as a process that dies does: the next writer looks for garbage."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _say(self, word: bytes) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(word)
        self._file.flush()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
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
            f"{path} is of format {found.format}; this release reads {FORMAT}: install a newer one"
        )
    return found
