"""The public functions: what they accept, refuse, and keep of the user's function."""

import functools
import inspect
import threading

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer import errors


def scale(a, k=2, *, offset=0):
    """Scales."""
    return a * k + offset


def ones():
    return torch.ones(2)


def test_function_keeps_its_face():
    compiled = torchsmith_tracer.compile(scale)
    assert compiled.__name__ == "scale" and compiled.__doc__ == "Scales."
    assert inspect.signature(compiled) == inspect.signature(scale)
    assert torch.equal(compiled(ones(), offset=1), ones() * 3)
    with pytest.raises(TypeError, match=r"scale|dispatch"):
        compiled()


def test_decorator_with_and_without_options():
    @torchsmith_tracer.compile
    def one(a):
        return a + 1

    @torchsmith_tracer.compile(fullgraph=True, dynamic=False)
    def two(a):
        return a + 2

    assert torch.equal(one(ones()), ones() + 1)
    assert torch.equal(two(ones()), ones() + 2)


def test_bound_method_partial_callable_builtin():
    class Model:
        def __init__(self):
            self.k = 3

        def run(self, a, b=1):
            return a * self.k + b

        def __call__(self, a):
            return self.run(a)

    m = Model()
    compiled = torchsmith_tracer.compile
    assert torch.equal(compiled(m.run)(ones()), ones() * 4)
    assert torch.equal(compiled(m.run)(ones(), b=2), ones() * 5)
    assert torch.equal(compiled(m)(ones()), ones() * 4)
    assert torch.equal(compiled(functools.partial(scale, k=5))(ones()), ones() * 5)
    assert torch.equal(compiled(torch.relu)(ones()), ones())
    m.k = 4
    assert torch.equal(compiled(m.run)(ones()), ones() * 5)


def test_method_compiled_in_a_class_body():
    class Model:
        k = 3

        @torchsmith_tracer.compile
        def run(self, a):
            return a * self.k

    assert torch.equal(Model().run(ones()), ones() * 3)


def test_not_callable():
    with pytest.raises(TypeError, match="int"):
        torchsmith_tracer.compile(3)
    with pytest.raises(TypeError, match="callable"):
        torchsmith_tracer.explain(3)

    def generator():
        yield 1

    with pytest.raises(TypeError, match="generator"):
        torchsmith_tracer.compile(generator)


def test_unknown_names_list_the_valid_ones():
    with pytest.raises(errors.UnknownBackendError, match="eager"):
        torchsmith_tracer.compile(scale, backend="nonesuch")
    with pytest.raises(errors.UnknownOptionError, match="max-autotune"):
        torchsmith_tracer.compile(scale, mode="fast")
    with pytest.raises(errors.UnknownOptionError, match="recompile_limit"):
        torchsmith_tracer.compile(scale, options={"speed": 1})
    with pytest.raises(TypeError, match="eager"):
        torchsmith_tracer.compile(scale, backend=3)


def test_backend_options():
    seen = {}

    def backend(gm, inputs, *, mode=None, options=None):
        seen.update(mode=mode, options=options)
        return gm.forward

    backend.option_names = ("tile",)
    backend.modes = ("default", "fast")
    compile = functools.partial(torchsmith_tracer.compile, scale, backend=backend)
    compile(mode="fast", options={"tile": 4, "recompile_limit": 3})(ones())
    assert seen == {"mode": "fast", "options": {"tile": 4}}
    with pytest.raises(errors.UnknownOptionError, match="tile"):
        compile(options={"tyle": 4})
    with pytest.raises(errors.UnknownOptionError, match="fast"):
        compile(mode="reduce-overhead")


def test_compiling_twice_is_compiling_once(capture):
    once = torchsmith_tracer.compile(scale)
    twice = torchsmith_tracer.compile(once, backend=capture)
    assert torch.equal(twice(ones()), ones() * 2)
    assert capture.n == 1


def test_63_disable():
    @torchsmith_tracer.disable
    def outside(a):
        return a - 1

    report = torchsmith_tracer.explain(lambda a: outside(a + 1) * 2)(ones())
    assert (report.graph_count, report.break_count) == (2, 1)


def test_reset_and_settings(capture):
    compiled = torchsmith_tracer.compile(scale, backend=capture)
    compiled(ones())
    compiled(ones())
    assert capture.n == 1
    torchsmith_tracer.reset()
    compiled(ones())
    assert capture.n == 2
    with torchsmith_tracer.Settings.patch(recompile_limit=1):
        limited = torchsmith_tracer.compile(scale)
    assert limited._torchsmith_region.settings.recompile_limit == 1
    with pytest.raises(TypeError), torchsmith_tracer.Settings.patch(nonsense=1):
        pass


def test_threads_compile_different_inputs_at_once():
    compiled = torchsmith_tracer.compile(scale, dynamic=False)
    failures = []

    def work(n):
        for size in range(2, 6):
            a = torch.full((size,), float(n))
            if not torch.equal(compiled(a), a * 2):
                failures.append((n, size))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
    assert len(compiled._torchsmith_region.log.frames) == 4


def test_logs(monkeypatch, capsys):
    monkeypatch.setenv("TORCHSMITH_LOGS", "graph,guards,bytecode")
    torchsmith_tracer.compile(scale)(ones())
    err = capsys.readouterr().err
    for part in ("[torchsmith graph]", "[torchsmith guards]", "[torchsmith bytecode]"):
        assert part in err
