"""Which exceptions come from outside of the code that raises them."""

import functools
import signal

import pytest
from torchsmith_guards import is_interruption


def handler(*args):
    raise ValueError


class Handler:
    def __call__(self, *args):
        raise ValueError

    def method(self, *args):
        raise ValueError

    @staticmethod
    def plain(*args):
        raise ValueError


@functools.wraps(handler)
def wrapped(*args):
    return handler(*args)


def caught(call, *args):
    try:
        call(*args)
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error


@pytest.fixture(autouse=True)
def restored():
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "made",
    [handler, Handler(), Handler().method, Handler.plain, wrapped],
    ids=["function", "object", "method", "static method", "wrapper"],
)
def test_handlers_of_signals(made):
    assert not is_interruption(caught(made))
    assert is_interruption(caught(made), made)
    signal.signal(signal.SIGUSR1, made)
    assert is_interruption(caught(signal.raise_signal, signal.SIGUSR1))


@pytest.mark.parametrize("ignored", [signal.SIG_DFL, signal.SIG_IGN])
def test_failures(ignored):
    signal.signal(signal.SIGUSR1, ignored)
    for call in (lambda: 1 / 0, lambda: int("x"), lambda: signal.Signals(999), lambda: [].a):
        assert not is_interruption(caught(call))
    assert not is_interruption(caught(int, "x"), None, int, signal.Signals)
    assert not is_interruption(ValueError())


def test_what_is_no_exception():
    """A statement raises it for itself; C's own handler does anywhere, and so do other threads."""

    def stop():
        raise KeyboardInterrupt

    def stop_again():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise

    assert not is_interruption(caught(stop))
    assert not is_interruption(caught(lambda: stop()))
    assert is_interruption(caught(stop), stop)
    assert is_interruption(caught(stop_again))
    assert is_interruption(caught(signal.raise_signal, signal.SIGINT))
    assert is_interruption(caught(lambda: signal.raise_signal(signal.SIGINT)))
    assert is_interruption(SystemExit())
