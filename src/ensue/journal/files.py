"""The files of a journal, and the syncs that make them survive a power cut.

    lock                    locked (flock) by the process that has the journal open; not empty once
                            the journal was created, then with the number of the last synced batch
    manifest                the log's identity, its first segment, and its end if it was closed
    000000000007.log        a segment; everything before it is whole and on the disk
    000000000007.index      its sidecar, written once the next segment exists
    000000000008.next       a segment too; what is before it may not be on the disk yet

The suffix of a segment shows what is durable. A new segment is a `.next`, because creating it must
not wait for the disk. It becomes a `.log` when the segment before it, and its own start, are
synced. So a `.log` with a successor is whole, or the disk lost data. No receipt covers the tail of
the last `.log` or any `.next`. A sidecar shows that the next segment was created: if that is
missing, the end of the log is lost.

HAZARD: the file system must keep locks between processes and must not lie about syncing. On a
network mount without locks two processes would write into one journal and destroy it.
"""

import contextlib
import os
from pathlib import Path
from struct import Struct
from zlib import crc32

from ensue.core import platform
from ensue.core.errors import BadInput, EnsueError, LogDamaged, LogInUse
from ensue.journal.format import Manifest, decode_manifest, encode_manifest

__all__ = ["Files", "JournalFailed", "damaged", "missing"]

_UNFINISHED = ".unfinished"
_CREATED = b"made\n"
_SYNCED = Struct("<QI")
"""A batch number, and its CRC-32."""


class JournalFailed(EnsueError, OSError):
    """An earlier write or sync failed, so the journal is read-only. Open it again."""


def damaged(path: Path, byte: int, why: str) -> LogDamaged:
    """Return the error for a damaged file."""
    return LogDamaged(f"{path} is damaged at byte {byte}: {why}", path=str(path))


def missing(path: Path) -> LogDamaged:
    """Return the error for a file that should exist."""
    return LogDamaged(f"{path} is missing, but it is part of the journal", path=str(path))


class Files:
    """The directory of one journal, locked while it is open.

    A journal without its `lock` raises `LogDamaged`; `replace_lock` creates a new one instead.
    """

    def __init__(self, root: Path, *, replace_lock: bool = False) -> None:
        self.root = root
        system = self.system = platform.current().files
        new = [each for each in (root, *root.parents) if not system.exists(each)]
        try:
            system.make_folder(root)
        except (FileExistsError, NotADirectoryError):
            raise BadInput(f"{root} is a file: name a directory for the journal") from None
        self.lock_missing = not system.exists(self.lock) and self._holds_journal()
        """Whether the last synced batch is unknown, because the file that records it is gone."""
        if self.lock_missing and not replace_lock:
            raise missing(self.lock)
        if not self.lock_missing and not system.exists(self.lock) and system.names(root):
            raise BadInput(f"{root} is not empty and holds no journal; name a new directory")
        self._lock = system.open(self.lock, os.O_RDWR | os.O_CREAT)
        try:
            system.lock(self._lock)
        except BlockingIOError:
            system.close(self._lock)
            raise LogInUse(
                f"{root} is open in another process: stop that process, or name another directory",
                path=str(root),
            ) from None
        for each in new:
            system.sync_folder(each.parent)

    def _holds_journal(self) -> bool:
        return bool(self.numbers(".log") or self.numbers(".next"))

    @property
    def lock(self) -> Path:
        """Return the path of the lock."""
        return self.root / "lock"

    def log(self, number: int) -> Path:
        """Return the path of a segment whose predecessors are durable."""
        return self.root / f"{number:012}.log"

    def next(self, number: int) -> Path:
        """Return the path of a segment whose predecessor may not be durable."""
        return self.root / f"{number:012}.next"

    def index(self, number: int) -> Path:
        """Return the path of a segment's sidecar."""
        return self.root / f"{number:012}.index"

    @property
    def manifest(self) -> Path:
        """Return the path of the manifest: the log's identity, start and end."""
        return self.root / "manifest"

    def read_manifest(self) -> Manifest | None:
        """Return the manifest, or None if it does not exist; raise `LogDamaged`."""
        try:
            data = self.system.read(self.manifest)
        except FileNotFoundError:
            return None
        found = decode_manifest(data)
        if found is None:
            raise damaged(self.manifest, 0, "it can't be read")
        return found

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest, and sync it."""
        self._replace(self.manifest, encode_manifest(manifest))
        self.sync()

    @property
    def created(self) -> bool:
        """Whether this directory ever held a journal."""
        return self.system.size(self._lock) > 0

    def set_created(self) -> None:
        """Record that this directory holds a journal."""
        if not self.created:
            self.system.write_at(self._lock, _CREATED, 0)
            self.system.sync(self._lock)

    @property
    def synced(self) -> int:
        """The last batch that was recorded as synced; 0 for none."""
        data = self.system.read_at(self._lock, _SYNCED.size, len(_CREATED))
        if len(data) < _SYNCED.size:
            return 0
        number, checksum = _SYNCED.unpack(data)
        return int(number) if crc32(data[:8]) == checksum else 0

    def set_synced(self, number: int) -> None:
        """Record that a batch was synced. The record itself is not synced."""
        data = number.to_bytes(8, "little")
        record = data + crc32(data).to_bytes(4, "little")
        self.system.write_at(self._lock, record, len(_CREATED))

    def numbers(self, suffix: str) -> list[int]:
        """Return the numbers of the files with a suffix, sorted."""
        return sorted(
            int(path.stem)
            for path in map(Path, self.system.names(self.root))
            if path.suffix == suffix and path.stem.isdecimal()
        )

    def read_sidecar(self, number: int) -> bytes:
        """Return the bytes of a sidecar, empty if the file does not exist."""
        try:
            return self.system.read(self.index(number))
        except FileNotFoundError:
            return b""

    def write_sidecar(self, number: int, data: bytes) -> None:
        """Write a sidecar. Its name is durable after the next `sync`."""
        self._replace(self.index(number), data)

    def _replace(self, path: Path, data: bytes) -> None:
        """Replace a file atomically. Its name is durable after the next `sync`."""
        unfinished = path.with_suffix(_UNFINISHED)
        descriptor = self.system.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.write_all(descriptor, data)
            self.system.sync(descriptor)
        finally:
            self.system.close(descriptor)
        self.system.rename(unfinished, path)

    def write_all(self, descriptor: int, data: bytes) -> None:
        """Write all bytes. The system may write fewer if they are many or the disk is full."""
        written = self.system.write(descriptor, data)
        if written < len(data):
            view = memoryview(data)
            while written < len(data):
                written += self.system.write(descriptor, view[written:])

    def confirm(self, number: int) -> None:
        """Rename a segment from `.next` to `.log`: its predecessors are durable."""
        self.system.rename(self.next(number), self.log(number))
        self.sync()

    def remove(self, number: int) -> None:
        """Remove a segment and its sidecar. This is durable after the next `sync`."""
        # In this order: a segment may lack its sidecar, but not the other way round.
        self.discard(self.index(number))
        self.system.remove(self.log(number))

    def discard(self, path: Path) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.system.remove(path)

    def read_start(self, path: Path, size: int) -> bytes:
        """Return the first bytes of a file."""
        descriptor = self.system.open(path, os.O_RDONLY)
        try:
            return self.system.read_at(descriptor, size, 0)
        finally:
            self.system.close(descriptor)

    def keep_copy(self, path: Path, data: bytes) -> None:
        """Keep the content of a file that is about to be truncated, as `.lost`."""
        self._replace(path.with_name(f"{path.name}.lost"), data)

    def set_aside(self, path: Path) -> None:
        """Rename a file that the journal no longer uses to `.lost`."""
        if self.system.exists(path):
            self.system.rename(path, path.with_name(f"{path.name}.lost"))

    def remove_garbage(self) -> None:
        """Remove files that a killed process left half written or half removed."""
        logs = set(self.numbers(".log"))
        for path in [self.root / name for name in self.system.names(self.root)]:
            orphan = (
                path.suffix == ".index" and path.stem.isdecimal() and int(path.stem) not in logs
            )
            if orphan or path.suffix == _UNFINISHED:
                self.system.remove(path)

    def sync(self) -> None:
        """Sync the directory, so that its file names survive a power cut."""
        self.system.sync_folder(self.root)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            self.system.close(self._lock)
            self._lock = -1
