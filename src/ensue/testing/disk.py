"""The simulated disk of one host: files that forget what was not synced.

The content and the names that a process sees are those in the memory of the operating system. They
survive the process. A power cut leaves what was synced, and of the rest what happened to be written
back:

- of the writes to a file since its last sync, the first few; the last of them may be torn, or its
  bytes may be zeros: the file system had written the length and not the data;
- of the changes of names since the folder's last sync, the first few, in sequence.

Other faults: a full disk takes a part of a write and then none; a failing disk raises at `sync` and
keeps nothing of what it should have synced; a bit may flip in a file at rest; a whole folder may be
lost, or replaced by an older copy of itself.
"""

import errno
import os
from pathlib import Path
from random import Random

__all__ = ["Disk"]

WRITTEN_BACK = 0.7
"""Probability that a file has more than what was synced after a power cut."""
TORN = 0.5
"""Probability that the last write that is there is torn."""
ZEROED = 0.3
"""Probability that a torn write has the length and not the data."""


def _put(content: bytearray, data: bytes, offset: int) -> None:
    """Write at an offset; zeros fill what is missing before it."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class _File:
    """One file: its content, and the part that survives a power cut."""

    __slots__ = ("content", "lapsed", "locked_by", "safe", "writes")

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.safe = bytearray(content)
        """The content at the last sync."""
        self.writes: list[tuple[int, bytes]] = []
        """Offset and bytes of each write since."""
        self.lapsed = False
        """Whether a sync failed: later ones copy what the kernel took for written."""
        self.locked_by: object = None

    def write(self, data: bytes, offset: int) -> None:
        _put(self.content, data, offset)
        self.writes.append((offset, data))

    def sync(self) -> None:
        if self.lapsed:
            self.copy()
        # Only what is new: journals grow, and are synced after every batch.
        for offset, data in self.writes:
            _put(self.safe, data, offset)
        self.writes.clear()

    def copy(self) -> None:
        """Make all content survive a power cut, also what was not written in the usual way."""
        self.safe[:] = self.content
        self.writes.clear()
        self.lapsed = False

    def lose_power(self, random: Random) -> None:
        """Keep the synced content and the first few later writes."""
        content = bytearray(self.safe)
        kept = random.randint(0, len(self.writes)) if random.random() < WRITTEN_BACK else 0
        for place, (offset, written) in enumerate(self.writes[:kept]):
            data = written
            if place == kept - 1 and random.random() < TORN:
                data = written[: random.randint(0, len(written))]
                if random.random() < ZEROED:
                    data = bytes(len(data))
            _put(content, data, offset)
        self.content = content
        self.copy()
        self.locked_by = None


class _Change:
    """A change of names in a folder since its last sync."""

    __slots__ = ("folder", "names")

    def __init__(self, folder: Path, names: dict[Path, _File | None]) -> None:
        self.folder = folder
        self.names = names
        """By name: the file after the change; None: removed."""


class Disk:
    """The files of one host. Implements `ensue.core.platform.FileSystem`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names: dict[Path, _File] = {}
        self._folders: dict[Path, None] = {Path("/"): None}
        self._safe_names: dict[Path, _File] = {}
        self._changes: list[_Change] = []
        self._open: dict[int, tuple[_File, object]] = {}
        self._descriptors = 2
        self._copies: dict[Path, dict[Path, bytes]] = {}
        """Older copies of folders, for `roll_back`."""
        self.owner: object = None
        """The process that opens and locks files now."""
        self.full_after: int | None = None
        """Free bytes; None: unlimited."""
        self.fails_sync = False
        self.synced = 0
        """Number of syncs."""

    # -- Files ----------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        """Open a file; return its descriptor."""
        found = self._names.get(path)
        if found is None:
            if path in self._folders:
                raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            if path.parent not in self._folders:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            found = _File()
            self._rename({path: found})
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        elif flags & os.O_TRUNC:
            found = _File()
            self._rename({path: found})
        self._descriptors += 1
        self._open[self._descriptors] = found, self.owner
        return self._descriptors

    def close(self, descriptor: int) -> None:
        """Close a descriptor, and release its lock."""
        found, _ = self._open.pop(descriptor)
        if found.locked_by == descriptor:
            found.locked_by = None

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at an offset."""
        return bytes(self._open[descriptor][0].content[offset : offset + size])

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write at the end; return how many bytes the disk took."""
        found = self._open[descriptor][0]
        return self._write(found, bytes(data), len(found.content))

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        """Write at an offset; return how many bytes the disk took."""
        return self._write(self._open[descriptor][0], data, offset)

    def _write(self, found: _File, data: bytes, offset: int) -> int:
        if self.full_after is not None:
            if self.full_after <= 0 < len(data):
                raise OSError(errno.ENOSPC, "No space left on device")
            data = data[: self.full_after]
            self.full_after -= len(data)
        if data:
            found.write(data, offset)
        return len(data)

    def size(self, descriptor: int) -> int:
        """Return the size of an open file."""
        return len(self._open[descriptor][0].content)

    def sync(self, descriptor: int) -> None:
        """Make the content of a file survive a power cut."""
        found = self._open[descriptor][0]
        if self.fails_sync:
            # The kernel marks the pages clean all the same: a second sync would succeed.
            found.writes.clear()
            found.lapsed = True
            raise OSError(errno.EIO, "Input/output error")
        found.sync()
        self.synced += 1

    def lock(self, descriptor: int) -> None:
        """Lock a file; raise BlockingIOError if another descriptor has it."""
        found = self._open[descriptor][0]
        if found.locked_by not in (None, descriptor):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        found.locked_by = descriptor

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file to a size."""
        found = self._file(path)
        del found.content[size:]
        found.copy()  # Journals sync what they cut before they write on.

    # -- Names ----------------------------------------------------------------------------------

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        return bytes(self._file(path).content)

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder at a path."""
        return path in self._names or path in self._folders

    def size_of(self, path: Path) -> int:
        """Return the size of a file."""
        return len(self._file(path).content)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(folder))
        return sorted(
            path.name for path in (*self._names, *self._folders) if path.parent == folder != path
        )

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents."""
        for each in (path, *path.parents):
            if each in self._names:
                raise FileExistsError(errno.EEXIST, "File exists", str(each))
            self._folders[each] = None

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        found = self._file(path)
        self._rename({path: None, target: found})

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self._file(path)
        self._rename({path: None})

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder survive a power cut."""
        if self.fails_sync:
            raise OSError(errno.EIO, "Input/output error")
        rest = []
        for change in self._changes:
            if change.folder == folder:
                _apply(self._safe_names, change)
            else:
                rest.append(change)
        self._changes = rest

    def _file(self, path: Path) -> _File:
        found = self._names.get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return found

    def _rename(self, names: dict[Path, _File | None]) -> None:
        change = _Change(next(iter(names)).parent, names)
        _apply(self._names, change)
        self._changes.append(change)

    # -- Faults ---------------------------------------------------------------------------------

    def process_ended(self) -> None:
        """Close all descriptors, as the kernel does when a process ends."""
        for descriptor in list(self._open):
            self.close(descriptor)

    def lose_power(self) -> None:
        """Lose unsynced changes, except those already written back."""
        self._open.clear()
        kept = self._random.randint(0, len(self._changes))
        for change in self._changes[:kept]:
            _apply(self._safe_names, change)
        self._changes.clear()
        self._names = dict(self._safe_names)
        done: dict[int, None] = {}
        for found in self._names.values():
            if id(found) not in done:
                done[id(found)] = None
                found.lose_power(self._random)

    def flip_bit(self, folder: Path, suffix: str = ".log", *, synced: bool = False) -> str | None:
        """Flip one bit of a file in a folder; return which, or None if there is no such file.

        With `synced` it is one that was synced: no crash explains that it is wrong.
        """

        def size(found: _File) -> int:
            return len(found.safe if synced else found.content)

        candidates = [
            path
            for path, found in sorted(self._names.items())
            if path.is_relative_to(folder) and path.suffix == suffix and size(found)
        ]
        if not candidates:
            return None
        path = self._random.choice(candidates)
        found = self._names[path]
        place = self._random.randrange(size(found))
        found.content[place] ^= 1 << self._random.randrange(8)
        found.copy()
        return f"{path} byte {place}"

    def append(self, path: Path, data: bytes) -> None:
        """Append bytes to a file at rest."""
        found = self._file(path)
        found.content.extend(data)
        found.copy()

    def copy(self, folder: Path) -> None:
        """Keep a copy of a folder, for `roll_back`."""
        self._copies[folder] = {
            path: bytes(found.content)
            for path, found in self._names.items()
            if path.is_relative_to(folder)
        }

    def roll_back(self, folder: Path) -> bool:
        """Replace a folder by its copy; return False if there is none."""
        copy = self._copies.get(folder)
        if copy is None:
            return False
        self.lose(folder)
        for path, content in copy.items():
            self._names[path] = self._safe_names[path] = _File(content)
        return True

    def lose(self, folder: Path) -> None:
        """Lose all files below a folder."""
        self._open.clear()
        self._changes = [each for each in self._changes if not each.folder.is_relative_to(folder)]
        for names in (self._names, self._safe_names):
            for path in [each for each in names if each.is_relative_to(folder)]:
                del names[path]


def _apply(names: dict[Path, _File], change: _Change) -> None:
    for path, found in change.names.items():
        if found is None:
            names.pop(path, None)
        else:
            names[path] = found
