"""The native part: what stands against using it, where it is kept, and its self-test."""

import os
import stat
import subprocess
import sys
import threading

import pytest
import torch
from torchsmith_guards._src import torch_private
from torchsmith_guards._src.unchanged import memory, native, selftest

stamped = sys.version_info < (3, 14)
needs_stamps = pytest.mark.skipif(not stamped, reason="this Python does not stamp its dicts")


@pytest.fixture(scope="module")
def library():
    return native.load()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    return tmp_path / "guards"


@pytest.fixture
def unused(monkeypatch):
    """The process-wide state of a process that has not asked for the library yet."""
    monkeypatch.setattr(native, "shared", native.Shared())


def problem():
    """Why there is no library, once that is known."""
    native.library()
    assert native.shared.settled.wait(60)
    assert native.unavailable()
    assert native.library() is None
    return native.shared.problem


@needs_stamps
def test_the_self_test_holds_here_and_nothing_else_stands_against_the_library(unused, library):
    selftest.run(library)
    assert native.library() is None, "the first to ask does not wait"
    assert native.shared.settled.wait(60)
    assert native.library() is not None, native.shared.problem


def test_a_process_that_may_have_no_more_threads_checks_in_full(unused, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert problem() == "can't start new thread"


@needs_stamps
def test_the_library_is_compiled_once_and_only_its_owner_can_write_it(cache, monkeypatch):
    native.load()
    (made,) = cache.iterdir()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("compiled again"))
    native.load()


@needs_stamps
@pytest.mark.parametrize("place", ["cache", "guards", "library"])
def test_a_library_that_others_can_write_is_not_loaded(cache, place):
    native.load()
    (made,) = cache.iterdir()
    os.chmod({"cache": cache.parent, "guards": cache, "library": made}[place], 0o777)
    with pytest.raises(PermissionError):
        native.load()


@needs_stamps
@pytest.mark.parametrize("share", [0, 0.5, 0.9])
def test_a_library_of_which_a_part_is_missing_is_made_again(cache, share):
    """Not read by this process, which has the first file in use."""
    native.load()
    (made,) = cache.iterdir()
    whole = made.read_bytes()
    made.unlink()
    made.write_bytes(whole[: int(share * len(whole))])
    made.chmod(0o700)
    program = "from torchsmith_guards._src.unchanged import native; native.load()"
    command = [sys.executable, "-c", program]
    folder = {**os.environ, "TORCHSMITH_CACHE_DIR": str(cache.parent)}
    subprocess.run(command, env=folder, check=True, timeout=100)
    assert made.read_bytes() == whole


@needs_stamps
def test_a_compiler_that_fails_leaves_nothing_behind(cache, monkeypatch):
    monkeypatch.setattr(native, "compiler", lambda: ["false"])
    with pytest.raises(subprocess.CalledProcessError):
        native.load()
    assert list(cache.iterdir()) == []


def test_a_system_without_a_compiler(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError):
        native.compiler()


def test_the_environment_turns_it_off(unused, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_NATIVE_GUARDS", "0")
    assert "TORCHSMITH_NATIVE_GUARDS" in problem()


@needs_stamps
@pytest.mark.parametrize(
    "name",
    ["_stamps", "_instances", "_classes", "_references", "_tensors", "_gradients", "_batches"],
)
def test_one_claim_that_does_not_hold_turns_it_off(unused, monkeypatch, name):
    def claims(library):
        yield True
        yield False

    monkeypatch.setattr(selftest, name, claims)
    assert "SelfTestError" in problem()


@needs_stamps
@pytest.mark.parametrize("place", "STAMP TYPE LENGTH MRO CODE CONTENT DEFAULTS KWDEFAULTS".split())
def test_a_wrong_place_in_memory_is_found_out(monkeypatch, library, place):
    monkeypatch.setattr(memory, place, 0)  # the reference count
    with pytest.raises(selftest.SelfTestError):
        selftest.run(library)


@needs_stamps
def test_a_torch_without_one_of_the_functions_turns_it_off(unused, monkeypatch):
    monkeypatch.setattr(torch_private, "_LIBRARIES", (("libc10.so", "no_such_function"),))
    assert "no_such_function" in problem()


@needs_stamps
@pytest.mark.parametrize("place", [0, 1, 8, 9, 10, 11, 13])
def test_a_function_of_torch_that_says_something_else_is_found_out(monkeypatch, cache, place):
    # In a cache of its own: a file that is loaded twice is one library, with one set of functions.
    real = torch_private.metadata_functions()
    # Another function of the same signature in its place.
    wrong = {0: 3, 1: 2, 8: 9, 9: 8, 10: 8, 11: 8, 13: 8}[place]
    changed = (*real[:place], real[wrong], *real[place + 1 :])
    monkeypatch.setattr(torch_private, "metadata_functions", lambda: changed)
    with pytest.raises((selftest.SelfTestError, ValueError)):
        native.load()


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_pythons_that_do_not_stamp_are_not_supported(monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    with pytest.raises(selftest.SelfTestError):
        selftest.supported()


@needs_stamps
def test_the_calling_thread_does_not_wait_for_the_compiler(unused, monkeypatch, cache):
    started, go_on = threading.Event(), threading.Event()

    def run(*args, **kwargs):
        started.set()
        assert go_on.wait(60)
        raise OSError("no compiler after all")

    monkeypatch.setattr(subprocess, "run", run)
    assert native.library() is None
    assert started.wait(60)
    assert native.library() is None
    assert not native.unavailable(), "not yet"
    go_on.set()
    assert "no compiler after all" in problem()


@needs_stamps
def test_words_are_compared_in_order_and_up_to_the_first_that_differs(library):
    table = {"a": 1}
    words = memory.Table(library)
    words.add_word(id(table) + 24, native.word(id(table) + 24))
    words.add_word(8, 0)  # reading it would end the process
    words.lay_out()
    table["a"] = 2
    assert not words.holds()


@needs_stamps
def test_all_tensors_of_a_table_are_compared(library):
    tensors = [torch.nn.Parameter(torch.zeros(n, 2)) for n in range(20)]
    table = memory.Table(library)
    assert all(map(table.add_tensor, tensors))
    table.lay_out()
    for tensor in tensors:
        assert table.holds()
        tensor.requires_grad_(False)
        assert not table.holds()
        tensor.requires_grad_(True)
    assert table.holds()


EXITS = """
import threading, time
import torch
from torchsmith_guards._src.unchanged import native, selftest

def slowly(library):
    inside.set()
    time.sleep(0.5)
    for _ in range(2000):
        torch.empty(2, 2).add_(1)
    done.append(True)

inside, done = threading.Event(), []
selftest.run = slowly
native.library()
assert inside.wait(60)
import atexit
atexit._run_exitfuncs()
assert done, "the interpreter did not wait"
"""


def test_the_interpreter_does_not_end_while_the_thread_is_in_torch(tmp_path):
    env = {**os.environ, "TORCHSMITH_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", EXITS], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_child_of_a_fork_does_not_wait_for_a_thread_that_it_does_not_have():
    with native._in_torch:
        pid = os.fork()
        if not pid:
            os._exit(0 if native._in_torch.acquire(timeout=1) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
