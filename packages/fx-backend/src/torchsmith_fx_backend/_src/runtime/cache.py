"""One content-addressed directory for everything that is worth keeping between processes.

An entry is a small directory of files plus a manifest with the SHA-256 of each. Entries are
written under a temporary name and renamed into place, so readers in other processes see a whole
entry or none. The root is created with mode 0700 and is used only when it belongs to this user and
nobody else can write to it. No entry is ever unpickled.

A cache never makes a program fail: when its directory cannot be used there is one warning, and a
private temporary directory that lives as long as the process takes its place.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FORMAT = "v1"
_MANIFEST = "MANIFEST"
# Each attempt that fails means that another process wrote the same entry in the meantime.
_ATTEMPTS = 100
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


class CacheWarning(UserWarning):
    """The cache directory cannot be used; compilation goes on without it."""


@dataclass(frozen=True, slots=True)
class Miss:
    """Why one lookup found nothing usable: ``reason`` is ``absent``, ``corrupt: ...`` or
    ``unreadable: ...``."""

    key: str
    reason: str


class Cache:
    """A directory of hashed, immutable entries, safe for many processes at once.

    Attributes:
        root: the directory in use (a temporary one after a failure).
        misses: the latest lookups that found nothing, with the reason, oldest first.
        hits: number of lookups that found an entry.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Open (and create on first use) the cache below ``root``."""
        self.root = Path(root)
        self.misses: deque[Miss] = deque(maxlen=1024)
        self.hits = 0
        self._lock = threading.Lock()
        self._ready = False
        self._temporary = False

    def get(self, key: str) -> dict[str, bytes] | None:
        """The files of entry ``key``, each checked against its hash, or None (see ``misses``)."""
        if not self._open():
            return None
        entry = self._entry(key)
        try:
            files = _read_entry(entry)
        except FileNotFoundError:
            if entry.exists():
                self._drop(entry)
                self._miss(key, "corrupt: a file is missing")
            else:
                self._miss(key, "absent")
            return None
        except _CorruptEntry as error:
            self._drop(entry)
            self._miss(key, f"corrupt: {error}")
            return None
        except OSError as error:
            self._miss(key, f"unreadable: {error.strerror}")
            return None
        self.hits += 1
        return files

    def put(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Store ``files`` as entry ``key``; an equal entry that another process wrote is kept.

        Returns:
            Whether the entry is on disk now.
        """
        if not self._open():
            return False
        try:
            self._write(key, files)
        except OSError as error:
            if self._temporary or not self._fall_back(f"cannot be written: {error.strerror}"):
                return False
            try:
                self._write(key, files)
            except OSError:
                return False
        return True

    def path(self, key: str, name: str) -> Path:
        """Where file ``name`` of entry ``key`` lies; call after ``get`` or ``put`` said it does."""
        return self._entry(key) / name

    def remove(self, key: str) -> None:
        """Forget entry ``key``; processes that have it open keep it."""
        if self._open():
            self._drop(self._entry(key))

    def _entry(self, key: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self.root / _FORMAT / digest[:2] / digest[2:40]

    def _miss(self, key: str, reason: str) -> None:
        self.misses.append(Miss(key, reason))

    def _open(self) -> bool:
        if self._ready:
            return True
        with self._lock:
            if self._ready:
                return True
            problem = _prepare_root(self.root)
            if problem is None:
                self._ready = True
                return True
        return self._fall_back(problem)

    def _fall_back(self, problem: str) -> bool:
        """Warn once and go on in a private temporary directory."""
        with self._lock:
            if self._temporary:
                return self._ready
            self._temporary = True
            warnings.warn(
                f"torchsmith: cache directory {self.root} {problem}; compiling without it "
                "(set TORCHSMITH_CACHE_DIR to a directory of your own)",
                CacheWarning,
                stacklevel=2,
            )
            try:
                self.root = Path(tempfile.mkdtemp(prefix="torchsmith-"))
            except OSError:
                self._ready = False
                return False
            atexit.register(shutil.rmtree, self.root, ignore_errors=True)
            self._ready = True
            return True

    def _write(self, key: str, files: Mapping[str, bytes]) -> None:
        entry = self._entry(key)
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            lines = []
            for name, data in files.items():
                (temporary / name).write_bytes(data)
                lines.append(f"{hashlib.sha256(data).hexdigest()} {name}\n")
            # Last, so that a directory with a manifest is complete even on a crash half-way.
            (temporary / _MANIFEST).write_text("".join(lines))
            self._publish(temporary, entry)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _publish(self, temporary: Path, entry: Path) -> None:
        """Give a finished directory its name, unless a whole entry has it already."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                temporary.rename(entry)
                return
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                # Another process was first. Ours says the same unless theirs is damaged, or was
                # removed since: then others may be about to write it, too, and be first again.
                if _is_whole(entry):
                    return
                if attempt == _ATTEMPTS:
                    raise
                self._drop(entry)

    def _drop(self, entry: Path) -> None:
        """Take a damaged entry out of the way at once, then delete it at leisure."""
        grave = None
        try:
            grave = Path(tempfile.mkdtemp(prefix=".old-", dir=self.root))
            entry.rename(grave / "entry")
        except FileNotFoundError:
            pass  # another process took it away; what has its name from now on is not damaged
        except OSError:
            shutil.rmtree(entry, ignore_errors=True)
        if grave is not None:
            shutil.rmtree(grave, ignore_errors=True)


class _CorruptEntry(Exception):
    """An entry whose bytes do not match its manifest."""


def _read_entry(entry: Path) -> dict[str, bytes]:
    if not _is_ours(entry.stat()):
        raise _CorruptEntry("it belongs to another user")
    files: dict[str, bytes] = {}
    try:
        manifest = (entry / _MANIFEST).read_text()
    except UnicodeDecodeError:
        raise _CorruptEntry("manifest is not text") from None
    for line in manifest.splitlines():
        digest, separator, name = line.partition(" ")
        if not separator or "/" in name:
            raise _CorruptEntry("manifest is malformed")
        data = (entry / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise _CorruptEntry(f"{name} does not match its hash")
        files[name] = data
    if not files:
        raise _CorruptEntry("manifest is empty")
    return files


def _is_whole(entry: Path) -> bool:
    try:
        _read_entry(entry)
    except (OSError, _CorruptEntry):
        return False
    return True


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _prepare_root(root: Path) -> str | None:
    """Create ``root`` if need be; what is wrong with it, or None."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.stat()
    except OSError as error:
        return f"cannot be created: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if not _is_ours(status):
        return "can be written by other users"
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return "is not readable and writable"
    return None


def default_root() -> Path:
    """``$TORCHSMITH_CACHE_DIR``, or ``torchsmith`` below the XDG cache directory."""
    configured = os.environ.get("TORCHSMITH_CACHE_DIR")
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "torchsmith"


_open_caches: dict[Path, Cache] = {}
_open_caches_lock = threading.Lock()


def default_cache() -> Cache:
    """The process-wide cache of the directory that the environment names now."""
    root = default_root()
    with _open_caches_lock:
        cache = _open_caches.get(root)
        if cache is None:
            cache = _open_caches[root] = Cache(root)
        return cache
