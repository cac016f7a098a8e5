"""Exceptions as objects: fields, notes, groups, copies and links, with and without a break."""

import copy
import errno
import pickle

import pytest
import torch
import torchsmith_tracer


@torchsmith_tracer.disable
def opaque(x):
    return x * 2


class Coded(Exception):
    def __init__(self, text, code=None):
        super().__init__(text)
        self.code = code

    def __str__(self):
        return f"{super().__str__()} [{self.code}]"


class Made(ValueError):
    def __new__(cls, *args, **named):
        self = super().__new__(cls, "by new")
        self.count = len(args) + len(named)
        return self

    def __init__(self, *args, **named):
        super().__init__(*args)


class OwnOSError(OSError):
    def __init__(self, number):
        super().__init__(number, "own", "file")


class Group(ExceptionGroup):
    def __new__(cls, message, excs, tag=0):
        self = super().__new__(cls, message, excs)
        self.tag = tag
        return self

    def derive(self, excs):
        return Group(self.message, excs, self.tag + 1)


FIELDS = (
    "args value code errno strerror filename filename2 name obj path msg encoding object start end "
    "reason lineno offset text end_lineno end_offset print_file_and_line count message exceptions"
).split()


def seen(e):
    found = {n: getattr(e, n) for n in FIELDS if hasattr(e, n)}
    return type(e).__name__, str(e), repr(e), {n: str(v) for n, v in found.items()}


MAKE = [
    lambda: StopIteration(3), lambda: StopIteration(), lambda: SystemExit(4), lambda: SystemExit(),
    lambda: SystemExit(1, 2), lambda: KeyError("k"), lambda: KeyError("k", 1),
    lambda: OSError(errno.ENOENT, "gone"), lambda: OSError(errno.EEXIST, "there", "a", None, "b"),
    lambda: OSError("text"), lambda: OSError(1, 2, 3), lambda: OwnOSError(errno.ENOENT),
    lambda: PermissionError("no"), lambda: ImportError("i", name="n", path="p"),
    lambda: ModuleNotFoundError("m", name="n"), lambda: AttributeError("a", name="n", obj=3),
    lambda: NameError("x", name="n"), lambda: UnicodeDecodeError("utf-8", b"ab", 0, 1, "bad"),
    lambda: UnicodeEncodeError("ascii", "ab", 0, 1, "bad"),
    lambda: UnicodeTranslateError("ab", 0, 1, "bad"), lambda: SyntaxError("s"),
    lambda: SyntaxError("s", ("file", 1, 2, "text")),
    lambda: SyntaxError("s", ("file", 1, 2, "text", 3, 4)), lambda: Coded("c", 7),
    lambda: Made(1, 2, k=3), lambda: ExceptionGroup("g", [ValueError(1), KeyError(2)]),
    lambda: BaseExceptionGroup("g", (ValueError(1), KeyboardInterrupt())),
    lambda: BaseExceptionGroup("g", [ValueError(1)]), lambda: Group("g", [ValueError(1)], 4),
]  # fmt: skip

REFUSED = [
    lambda: ValueError(a=1), lambda: ImportError("i", bad=1), lambda: SyntaxError("s", 3),
    lambda: UnicodeDecodeError("utf-8", "ab", 0, 1, "bad"), lambda: UnicodeEncodeError(1),
    lambda: ExceptionGroup("g", []), lambda: ExceptionGroup("g", [1]), lambda: ExceptionGroup("g"),
    lambda: ExceptionGroup("g", [KeyboardInterrupt()]), lambda: AttributeError("a", other=2),
    lambda: ValueError().add_note(3), lambda: setattr(ValueError(), "__cause__", 3),
    lambda: setattr(ValueError(), "__context__", ValueError),
    lambda: ValueError().with_traceback(3), lambda: Group("g", [ValueError(1)], tag=4),
]  # fmt: skip


def test_fields(check, agree):
    def f(x):
        return x + 1, [seen(make()) for make in MAKE]

    def g(x):
        made = [make() for make in MAKE]
        x = opaque(x)
        return x + 1, [seen(e) for e in made]

    check(f, torch.ones(2), graphs=1)
    agree(g, torch.ones(2))


def test_refused_arguments(check):
    def f(x):
        out = []
        for make in REFUSED:
            try:
                make()
            except Exception as e:
                out.append((type(e).__name__, str(e)))
        return x + 1, out

    check(f, torch.ones(2), graphs=1)


def test_initialized_again(check):
    def f(x):
        out = []
        e = ImportError("first", name="n", path="p")
        e.msg = "stored"
        out.append(seen(e))
        e.__init__("second")
        out.append(seen(e))
        u = UnicodeEncodeError("baz", "xxxxx", 1, 5, "foo")
        u.end = 2
        u.reason = 965230951443685724997
        out.append(str(u))
        e.args = (1, 2)
        return x + 1, out, seen(e)

    check(f, torch.ones(2), graphs=1)


def test_notes(agree):
    def f(x):
        e = ValueError("v")
        e.add_note("one")
        x = opaque(x)
        e.add_note("two")
        return x + 1, e.__notes__, repr(e)

    agree(f, torch.ones(2))


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies(agree, way):
    def f(x):
        made = [
            Coded("c"), KeyError("k"), OSError(2, "gone", "name"), ImportError("i", name="n"),
            UnicodeDecodeError("utf-8", b"ab", 0, 1, "bad"), ExceptionGroup("g", [ValueError(1)]),
        ]  # fmt: skip
        made[1].extra = [1, 2]
        made[1].add_note("note")
        out = []
        for e in made:
            other = way(e)
            out.append((seen(other), other is e, vars(other)))
        return x + 1, out

    agree(f, torch.ones(2))


def test_circles_of_contexts(check):
    def f(x):
        a, b, c = ValueError("a"), KeyError("b"), TypeError("c")
        try:
            try:
                try:
                    raise a
                except ValueError:
                    raise b
            except KeyError:
                raise c
        except TypeError:
            try:
                raise a
            except ValueError as e:
                links = repr(e.__context__), repr(e.__context__.__context__)
                return x + 1, links, b.__context__, e.__cause__, e.__suppress_context__

    check(f, torch.ones(2), graphs=1)


# --- groups ------------------------------------------------------------------------------------


def tree(e):
    """A group as nested lists."""
    if isinstance(e, BaseExceptionGroup):
        return [type(e).__name__, e.message, getattr(e, "tag", None), *map(tree, e.exceptions)]
    return repr(e)


def nested():
    return Group("out", [
        ValueError(1), ExceptionGroup("in", [TypeError(2), ValueError(3), KeyError(4)]), OSError(5),
    ], 2)  # fmt: skip


def splits(x, between):
    group = nested()
    group.add_note("kept")
    x = between(x)
    out = []
    for condition in (ValueError, (TypeError, OSError), lambda e: isinstance(e, KeyError), Group):
        match, rest = group.split(condition)
        out.append((tree(match), tree(rest), tree(group.subgroup(condition))))
    part = group.subgroup(OSError)
    return x + 1, out, part.__notes__, group.subgroup(StopIteration), str(group), repr(part)


def stars(x, between):
    log = []
    for make in (nested, lambda: ValueError(7), lambda: ExceptionGroup("k", [KeyError(1)])):
        try:
            try:
                raise make()
            except* ValueError as e:
                x = between(x)
                log.append(("values", tree(e)))
            except* (TypeError, OSError) as e:
                x = between(x + 1)
                log.append(("others", tree(e)))
        except BaseException as e:
            log.append(("rest", tree(e)))
    return x + 1, log


def stars_that_raise(x, between):
    log = []
    for how in range(3):
        try:
            try:
                raise nested()
            except* ValueError as e:
                x = between(x)
                if how == 0:
                    raise
                if how == 1:
                    raise RuntimeError("new") from e
            except* OSError:
                x = between(x)
                raise
            finally:
                log.append("finally")
        except BaseException as e:
            log.append((tree(e), tree(e.__context__), tree(e.__cause__)))
    return x + 1, log


def stars_in_a_loop(x, between):
    log = []
    for i in range(3):
        try:
            raise ExceptionGroup("g", [ValueError(i), KeyError(i)])
        except* ValueError:
            x = between(x)
        except* KeyError as e:
            log.append(tree(e))
    return x + 1, log


def refused_stars(x, between):
    log = []
    for kinds in (3, ExceptionGroup, (ValueError, 3)):
        try:
            try:
                raise ValueError(1)
            except* kinds:
                pass
        except TypeError as e:
            log.append(str(e))
    x = between(x)
    return x + 1, log


GROUPS = [splits, stars, stars_that_raise, stars_in_a_loop, refused_stars]


@pytest.mark.parametrize("fn", GROUPS, ids=lambda fn: fn.__name__)
def test_groups(check, agree, fn):
    check(fn, torch.ones(2), lambda x: x * 2, graphs=1)
    log = agree(fn, torch.ones(2), opaque)
    assert all(b.resumed for b in log.breaks), [str(b) for b in log.breaks]


@pytest.mark.parametrize("suppress", [None, True, False])
@pytest.mark.parametrize("cause", [None, KeyError("cause")], ids=repr)
def test_what_is_said_of_the_context_stays_after_a_cause_is_set(cause, suppress):
    def program(x):
        try:
            raise KeyError(x.shape)
        except KeyError:
            error = ValueError(1)
            error.__cause__ = cause
            if suppress is not None:
                error.__suppress_context__ = suppress
            raise error

    shown = []
    for fn in (program, torchsmith_tracer.compile(program)):
        with pytest.raises(ValueError) as caught:
            fn(torch.ones(2))
        e = caught.value
        shown.append((e.__suppress_context__, repr(e.__cause__), repr(e.__context__)))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("broken", [False, True])
def test_a_single_exception_is_wrapped_as_cpython_does(broken):
    def f(x):
        try:
            raise ValueError("plain")
        except* ValueError as e:
            group = e
            x = opaque(x) if broken else x * 2
        return x, type(group.args[1]).__name__, len(group.exceptions)

    compiled = torchsmith_tracer.compile(f, backend="eager")
    x = torch.ones(2)
    assert compiled(x)[1:] == f(x)[1:] == ("tuple", 1)


def test_texts_of_missing_names_are_those_of_their_arguments():
    def f(x, obj):
        texts = []
        for ask in (lambda: Coded("a").gone, lambda: obj.gone, lambda: gone):  # noqa: F821
            try:
                ask()
            except (AttributeError, NameError) as e:
                texts += [str(e), f"{e}", repr(e), e.name]
                e.args = (x.shape, 1)
                texts.append(str(e))
        return texts, x + 1

    obj, x = Coded("b"), torch.ones(2)
    assert torchsmith_tracer.compile(f, backend="eager", fullgraph=True)(x, obj)[0] == f(x, obj)[0]
