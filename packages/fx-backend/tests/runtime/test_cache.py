"""The cache: whole entries or none, damage noticed, never a reason to fail."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchsmith_fx_backend._src.runtime import cache as cache_module
from torchsmith_fx_backend._src.runtime.cache import Cache, CacheWarning, default_cache

FILES = {"a.txt": b"alpha", "b.bin": bytes(range(256))}


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        yield


def test_round_trip(store: Cache) -> None:
    assert store.put("key", FILES)
    assert store.get("key") == FILES
    assert store.path("key", "a.txt").read_bytes() == b"alpha"
    assert store.hits == 1


def test_another_object_on_the_same_directory_sees_it(store: Cache) -> None:
    store.put("key", FILES)
    assert Cache(store.root).get("key") == FILES


def test_absent_says_why(store: Cache) -> None:
    assert store.get("key") is None
    assert [(m.key, m.reason) for m in store.misses] == [("key", "absent")]


def test_directory_is_private(store: Cache) -> None:
    store.put("key", FILES)
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "manifest", "empty", "binary"])
def test_damage_is_noticed_and_the_entry_can_be_rebuilt(store: Cache, damage: str) -> None:
    store.put("key", FILES)
    victim = store.path("key", "b.bin")
    manifest = store.path("key", "MANIFEST")
    match damage:
        case "flip":
            victim.write_bytes(b"\xff" + FILES["b.bin"][1:])
        case "truncate":
            victim.write_bytes(FILES["b.bin"][:100])
        case "delete":
            victim.unlink()
        case "manifest":
            manifest.write_text("nonsense")
        case "empty":
            manifest.write_text("")
        case "binary":
            manifest.write_bytes(b"\xff\xfe\x00")
    assert store.get("key") is None
    assert store.misses[-1].reason.startswith("corrupt")
    assert store.put("key", FILES)
    assert store.get("key") == FILES


def test_putting_over_a_damaged_entry_replaces_it(store: Cache) -> None:
    store.put("key", FILES)
    store.path("key", "a.txt").write_bytes(b"xxxxx")
    assert store.put("key", FILES)
    assert store.get("key") == FILES


def test_manifest_cannot_point_outside(store: Cache, tmp_path: Path) -> None:
    store.put("key", FILES)
    store.path("key", "MANIFEST").write_text("0" * 64 + " ../../secret\n")
    assert store.get("key") is None
    assert "malformed" in store.misses[-1].reason


def test_leaves_no_temporary_files(store: Cache) -> None:
    store.put("key", FILES)
    store.put("key", FILES)
    store.remove("key")
    assert store.get("key") is None
    assert [p.name for p in store.root.iterdir()] == ["v1"]


def warns_once_and_works(store: Cache, words: str) -> None:
    with pytest.warns(CacheWarning, match=words) as caught:
        assert store.put("key", FILES)
    assert len(caught) == 1
    # the autouse fixture turns any second warning into an error
    assert store.get("key") == FILES
    assert store.put("other", FILES)


def test_others_are_first_again_and_again(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time a damaged entry is taken away, another process has put one in its place."""
    rounds = iter(range(5))
    drop = Cache._drop

    def drop_and_be_overtaken(self: Cache, entry: Path) -> None:
        drop(self, entry)
        if next(rounds, None) is not None:
            entry.mkdir()
            (entry / "MANIFEST").write_text("")

    store.put("key", FILES)
    store.path("key", "b.bin").unlink()
    monkeypatch.setattr(Cache, "_drop", drop_and_be_overtaken)
    assert store.put("key", FILES)
    assert next(rounds, None) is None
    assert store.get("key") == FILES
    assert [p.name for p in store.root.iterdir()] == ["v1"]


def test_file_in_place_of_an_entry(store: Cache) -> None:
    store.put("key", FILES)
    store.remove("key")
    store.path("key", "").write_text("not a directory")
    assert store.put("key", FILES)
    assert store.get("key") == FILES


def test_removing_what_is_gone_leaves_nothing(store: Cache) -> None:
    store.put("other", FILES)
    store.remove("key")
    assert [p.name for p in store.root.iterdir()] == ["v1"]


def test_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    warns_once_and_works(Cache(tmp_path / "cache"), "cannot be created")


def test_directory_of_another_user(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    store.root.mkdir()
    real = os.geteuid()
    monkeypatch.setattr(cache_module.os, "geteuid", lambda: real + 1)
    with pytest.warns(CacheWarning, match="belongs to another user"):
        store.get("key")


def test_directory_that_others_can_write(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o777)
    warns_once_and_works(Cache(root), "written by other users")


def test_unwritable_directory(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cache_module.os, "access", lambda path, mode: Path(path) != store.root.absolute()
    )
    warns_once_and_works(store, "not readable and writable")


def test_full_disk(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes
    full = store.root

    def failing(self: Path, data: bytes) -> int:
        if full in self.parents:
            raise OSError(28, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", failing)
    warns_once_and_works(store, "No space left on device")
    assert not [p for p in full.iterdir() if p.name.startswith(".new")]


def test_nothing_can_be_written_anywhere(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object, **kwargs: object) -> str:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache_module.tempfile, "mkdtemp", failing)
    with pytest.warns(CacheWarning, match="Read-only file system"):
        assert not store.put("key", FILES)
    assert store.get("key") is None
    assert not store.put("key", FILES)


def test_environment_names_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "mine"))
    assert default_cache().root == tmp_path / "mine"
    assert default_cache() is default_cache()
    monkeypatch.delenv("TORCHSMITH_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache().root == tmp_path / "xdg" / "torchsmith"


WRITER = """
import sys
from torchsmith_fx_backend._src.runtime.cache import Cache
cache = Cache(sys.argv[1])
for round in range(40):
    for key in range(5):
        data = {"x": bytes([key]) * 20000, "y": b"y"}
        found = cache.get(str(key))
        assert found is None or found == data, key
        assert cache.put(str(key), data)
        if round % 7 == 0:
            cache.remove(str(key))
assert not [m for m in cache.misses if m.reason != "absent" and "missing" not in m.reason]
"""


def test_many_processes_at_once(tmp_path: Path) -> None:
    """Writers, readers and removers of the same keys never see half an entry."""
    root = str(tmp_path / "cache")
    running = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", WRITER, root], stderr=-1)
        for _ in range(3)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    assert Cache(root).put("last", FILES)
