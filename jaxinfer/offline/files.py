"""Files that clients have put here and batches have made, kept on disk over the server's life.

Each is two files in one folder: ID.json says what it is and is written last, ID.data is its content. What has no
ID.json was never finished and goes when the folder is opened.
"""

import contextlib
import dataclasses
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from jaxinfer.errors import BatchError, InvalidRequest
from jaxinfer.offline.disk import NEW, replacing
from jaxinfer.offline.formats import write_output
from jaxinfer.offline.records import Record

CONTENT, ABOUT = ".data", ".json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptLimits:
    """What is kept of each tenant. max_file_bytes: of one upload.    max_files, max_bytes: of all its files, those that
    batches make included.    max_batches: that there are.    max_rows: of one.    max_age_s: of a file, and of a batch
    that has ended.
    """

    max_file_bytes: int = 200 * 2**20
    max_files: int = 1000
    max_bytes: int = 4 * 2**30
    max_batches: int = 100
    max_rows: int = 50_000
    max_age_s: float = 30 * 24 * 3600.0


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """owner: whose it is.    purpose: batch, or batch_output.    created, expires: seconds since 1970."""

    id: str
    owner: str
    filename: str
    purpose: str
    num_bytes: int
    created: int
    expires: int


class FileStore:
    """The files of all tenants. Belongs to one event loop, but for what says that it takes long.

    Invariant: what `of` and `find` know is on disk, whole; a tenant has at most max_bytes of files, uploads under way
    and answers of running batches together.
    """

    def __init__(self, folder: Path, limits: KeptLimits, now_s: Callable[[], float] = time.time) -> None:
        self.limits = limits
        self._folder = folder
        self._now_s = now_s
        self._files: dict[str, StoredFile] = {}
        self._taken: Counter[str] = Counter()  # bytes by owner: of files, and of what is being written
        self.is_in_use: Callable[[StoredFile], bool] = lambda file: False
        folder.mkdir(mode=0o700, exist_ok=True)
        found = sorted(folder.glob(f"*{ABOUT}"))
        for file in sorted((_read(path) for path in found), key=lambda file: (file.created, file.id)):
            if self.path_of(file.id).exists():
                self._note(file)
        for path in folder.iterdir():
            if path.stem not in self._files or path.suffix == NEW:
                path.unlink()

    def of(self, owner: str) -> list[StoredFile]:
        """A tenant's, the oldest first."""
        self.forget_old()
        return [file for file in self._files.values() if file.owner == owner]

    def find(self, owner: str, file_id: str) -> StoredFile | None:
        """A tenant's file of that id."""
        self.forget_old()
        file = self._files.get(file_id)
        return file if file is not None and file.owner == owner else None

    def path_of(self, file_id: str) -> Path:
        """Where the content of a file is that was found."""
        return self._folder / f"{file_id}{CONTENT}"

    def delete(self, file: StoredFile) -> None:
        del self._files[file.id]
        self.count(file.owner, -file.num_bytes)
        (self._folder / f"{file.id}{ABOUT}").unlink(missing_ok=True)  # first: without it there is no file
        self.path_of(file.id).unlink(missing_ok=True)

    def counts(self) -> tuple[int, int]:
        """How many there are, and the bytes of them and of what is being written."""
        return len(self._files), sum(self._taken.values())

    def forget_old(self) -> None:
        """Delete what has expired and is not in use."""
        now = self._now_s()
        for file in [file for file in self._files.values() if file.expires <= now]:
            if not self.is_in_use(file):
                self.delete(file)

    # ---- room ----

    def check_new(self, owner: str) -> None:
        """Raise InvalidRequest when a tenant has as many files as it may have."""
        most = self.limits.max_files
        if len(self.of(owner)) >= most:
            law = f"at most {most} files may be kept (--max-files-per-key), and as many are"
            raise InvalidRequest(f"{law}; delete some", param="file", code="too_many_files")

    def take(self, owner: str, num_bytes: int) -> None:
        """Count bytes that are about to be written. Raises InvalidRequest, counting nothing, when there is no room."""
        most = self.limits.max_bytes
        if self._taken[owner] + num_bytes > most:
            law = f"all files together must have at most {most} bytes (--max-files-bytes-per-key), this would be more"
            raise InvalidRequest(f"{law}; delete some", param="file", code="storage_full")
        self._taken[owner] += num_bytes

    def count(self, owner: str, num_bytes: int) -> None:
        """Count bytes that are there already, or are there no longer if it is negative."""
        self._taken[owner] += num_bytes

    # ---- new files ----

    @contextlib.contextmanager
    def uploading(self, owner: str) -> "Iterator[Upload]":
        """A file that comes piece by piece; gone unless it was kept."""
        self.check_new(owner)
        upload = Upload(self, owner, self._folder)
        try:
            yield upload
        finally:
            upload.close()

    def describe(self, file_id: str, owner: str, filename: str, purpose: str, lasts_s: float | None) -> StoredFile:
        """Make the content of that id a file. Takes long: it waits for the disk; `known` must follow."""
        created = int(self._now_s())
        expires = created + int(min(self.limits.max_age_s, lasts_s or self.limits.max_age_s))
        size = self.path_of(file_id).stat().st_size
        file = StoredFile(
            id=file_id,
            owner=owner,
            filename=filename,
            purpose=purpose,
            num_bytes=size,
            created=created,
            expires=expires,
        )
        with replacing(self._folder / f"{file_id}{ABOUT}") as about:
            about.write(msgspec.json.encode(file))
        return file

    def write(self, file_id: str, owner: str, filename: str, records: Iterable[Record]) -> StoredFile:
        """A file of a batch's records. Takes long; `known` must follow."""
        write_output(records, self.path_of(file_id), "jsonl")
        return self.describe(file_id, owner, filename, "batch_output", None)

    def known(self, file: StoredFile) -> None:
        """Show a file whose bytes are not counted yet."""
        if file.id not in self._files:
            self._note(file)

    def _note(self, file: StoredFile) -> None:
        self._files[file.id] = file
        self.count(file.owner, file.num_bytes)


class Upload:
    """A file under way. Invariant: its bytes are counted before they are written, and no longer once it is closed."""

    def __init__(self, store: FileStore, owner: str, folder: Path) -> None:
        self.id = new_id("file-")
        self._store = store
        self._owner = owner
        self._file: BinaryIO = (folder / f"{self.id}{CONTENT}").open("wb")
        self._num_bytes = 0
        self._is_kept = False

    def take(self, num_bytes: int) -> None:
        """Count what `write` is about to write. Raises InvalidRequest when it is too much."""
        most = self._store.limits.max_file_bytes
        if self._num_bytes + num_bytes > most:
            message = f"a file must have at most {most} bytes (--max-file-bytes), this one has more; split it"
            raise InvalidRequest(message, param="file", code="file_too_large")
        self._store.take(self._owner, num_bytes)
        self._num_bytes += num_bytes

    def write(self, data: bytes) -> None:
        """Takes long."""
        self._file.write(data)

    def finish(self, filename: str, purpose: str, lasts_s: float | None) -> StoredFile:
        """Make it a file. Takes long; `keep` must follow."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._store.describe(self.id, self._owner, filename, purpose, lasts_s)

    def keep(self, file: StoredFile) -> None:
        """Show it. Raises InvalidRequest when others took the last place meanwhile."""
        self._store.check_new(self._owner)
        self._is_kept = True
        self._store.count(self._owner, -self._num_bytes)
        self._num_bytes = 0
        self._store.known(file)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of what could not be written, which `write` or `finish` has told of
            self._file.close()
        if not self._is_kept:
            self._store.count(self._owner, -self._num_bytes)
            path = self._store.path_of(self.id)
            path.with_suffix(ABOUT).unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


def _read(path: Path) -> StoredFile:
    try:
        return msgspec.json.decode(path.read_bytes(), type=StoredFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise BatchError(f"{path} must say what a file is, it cannot be read: {error}; move it away") from error
