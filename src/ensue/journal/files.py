"""The files of a journal by name, and what it takes for bytes and names to survive a power cut.

    lock                    held by the one process that has the journal open (flock); not empty
    once
                            the journal has been made, and then the last batch that was synced
    manifest                which log this is, its first segment, and where it ended when it was
    closed 000000000007.log        a segment; everything before it is whole and on the disk
    000000000007.index      its sidecar, once the segment after it has been begun 000000000008.next
    a segment too; what is before it may not be on the disk yet

The name tells what was promised. A segment is begun as `.next`, because beginning it must not wait
for the disk. It becomes `.log` when the segment before it, and its own start, have been synced. So
a `.log` that is followed by another is whole, or the disk lost something; the tail of the last
`.log`, and every `.next`, has no receipts. A sidecar says that the segment behind its own was
begun: without that, the end of the log is missing.

HAZARD: the file system must keep locks between processes and must not lie about syncing. On a
network mount without locks two processes would write into one journal and destroy it.
"""

import fcntl
import os
from pathlib import Path
from struct import Struct
from zlib import crc32

from ensue.core.errors import BadInput, EnsueError, LogDamaged, LogInUse
from ensue.journal.format import Manifest, decode_manifest, encode_manifest

__all__ = ["Files", "JournalFailed", "damaged", "sync_folder", "write_all"]

_UNFINISHED = ".unfinished"
_MADE = b"made\n"
_SYNCED = Struct("<QI")
"""The number of a batch, and its CRC-32."""


class JournalFailed(EnsueError, OSError):
    """Writing or syncing failed earlier, so nothing more is taken. Open the journal anew."""


def damaged(path: Path, byte: int, why: str) -> LogDamaged:
    """Return the error for a file that is not what was written there."""
    return LogDamaged(f"{path} is damaged at byte {byte}: {why}", path=str(path))


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything; the system takes it at once unless it is huge or the disk gets full."""
    written = os.write(descriptor, data)
    if written < len(data):
        view = memoryview(data)
        while written < len(data):
            written += os.write(descriptor, view[written:])


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Files:
    """The directory of one journal, locked as long as this is open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        new = [each for each in (root, *root.parents) if not each.exists()]
        try:
            root.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BadInput(f"{root} is a file; a journal is a directory") from None
        lock = root / "lock"
        if not lock.exists() and any(root.iterdir()):
            raise BadInput(f"{root} is not empty and holds no journal; name a new directory")
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise LogInUse(
                f"{root} is open already, and a journal is for one process at a time: wait until "
                "that one is closed, or name another directory",
                path=str(root),
            ) from None
        for each in new:
            sync_folder(each.parent)

    def log(self, number: int) -> Path:
        """Name a segment that everything before it is whole for."""
        return self.root / f"{number:012}.log"

    def next(self, number: int) -> Path:
        """Name a segment that was begun before the one before it was synced."""
        return self.root / f"{number:012}.next"

    def index(self, number: int) -> Path:
        """Name the sidecar of a segment."""
        return self.root / f"{number:012}.index"

    @property
    def manifest(self) -> Path:
        """Name the file that says which log this is and where it begins and ends."""
        return self.root / "manifest"

    def read_manifest(self) -> Manifest | None:
        """Return the manifest, None if there is no such file; `LogDamaged` if it can't be read."""
        try:
            data = self.manifest.read_bytes()
        except FileNotFoundError:
            return None
        found = decode_manifest(data)
        if found is None:
            raise damaged(self.manifest, 0, "it can't be read")
        return found

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest, for good."""
        self._replace(self.manifest, encode_manifest(manifest))
        self.sync()

    @property
    def made(self) -> bool:
        """Whether this directory ever held a journal."""
        return os.fstat(self._lock).st_size > 0

    def set_made(self) -> None:
        """Note that a journal was made here."""
        if not self.made:
            os.pwrite(self._lock, _MADE, 0)
            os.fsync(self._lock)

    @property
    def synced(self) -> int:
        """The last batch that is known to have been synced; 0: none is."""
        data = os.pread(self._lock, _SYNCED.size, len(_MADE))
        if len(data) < _SYNCED.size:
            return 0
        number, checksum = _SYNCED.unpack(data)
        return int(number) if crc32(data[:8]) == checksum else 0

    def set_synced(self, number: int) -> None:
        """Note that a batch was synced; the note itself need not survive a power cut."""
        data = number.to_bytes(8, "little")
        os.pwrite(self._lock, data + crc32(data).to_bytes(4, "little"), len(_MADE))

    def numbers(self, suffix: str) -> list[int]:
        """Return the numbers of the files of one kind, in order."""
        return sorted(
            int(path.stem)
            for path in self.root.iterdir()
            if path.suffix == suffix and path.stem.isdecimal()
        )

    def read_sidecar(self, number: int) -> bytes:
        """Return the bytes of a sidecar, none if there is no such file."""
        try:
            return self.index(number).read_bytes()
        except FileNotFoundError:
            return b""

    def write_sidecar(self, number: int, data: bytes) -> None:
        """Write a sidecar; its name is safe after the next `sync`."""
        self._replace(self.index(number), data)

    def _replace(self, path: Path, data: bytes) -> None:
        """Write a file as a whole or not at all; its name is safe after the next `sync`."""
        unfinished = path.with_suffix(_UNFINISHED)
        descriptor = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
        )
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        unfinished.replace(path)

    def confirm(self, number: int) -> None:
        """Give a segment the name that says that everything before it is whole."""
        self.next(number).rename(self.log(number))
        self.sync()

    def remove(self, number: int) -> None:
        """Remove a segment and its sidecar; this is final after the next `sync`."""
        # A segment can be without its sidecar, but not the other way round.
        self.index(number).unlink(missing_ok=True)
        self.log(number).unlink()

    def set_aside(self, path: Path) -> None:
        """Keep a file that the journal does without from now on, under another name."""
        if path.exists():
            path.rename(path.with_name(f"{path.name}.lost"))

    def remove_garbage(self) -> None:
        """Remove what writing or removing left half done when the process was killed."""
        logs = set(self.numbers(".log"))
        for path in list(self.root.iterdir()):
            orphan = (
                path.suffix == ".index" and path.stem.isdecimal() and int(path.stem) not in logs
            )
            if orphan or path.suffix == _UNFINISHED:
                path.unlink()

    def sync(self) -> None:
        """Make the names survive a power cut."""
        sync_folder(self.root)

    def close(self) -> None:
        """Let the next one have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
