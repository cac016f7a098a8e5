"""The public functions: what they accept, refuse, and keep of the user's function."""

import asyncio
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


def test_a_partial_whose_keywords_change_later():
    given = functools.partial(scale, k=5)
    compiled = torchsmith_tracer.compile(given)
    assert torch.equal(compiled(ones()), ones() * 5)
    given.keywords["k"] = 6
    assert torch.equal(compiled(ones()), ones() * 6)
    assert torch.equal(compiled(ones(), k=7), ones() * 7)
    compiled.keywords["k"] = 8
    assert torch.equal(given(ones()), ones() * 8)


def test_an_object_whose_class_is_called_otherwise_later():
    class Model:
        def __call__(self, a):
            return a * 2

    class Other:
        def __call__(self, a, b=3):
            return a * b

    m = Model()
    compiled = torchsmith_tracer.compile(m)
    assert torch.equal(compiled(ones()), ones() * 2)
    Model.__call__ = lambda self, a, b=5: a - b
    assert torch.equal(compiled(ones()), ones() - 5)
    m.__class__ = Other
    assert torch.equal(compiled(ones()), ones() * 3)
    Other.__call__ = functools.partial(torch.mul, ones())
    assert torch.equal(compiled(ones() * 4), ones() * 4)


@pytest.mark.parametrize("owner", ["its class", "torch's class"])
def test_a_module_whose_class_is_called_otherwise_for_a_while(owner, monkeypatch):
    class Model(torch.nn.Module):
        def forward(self, a):
            return a + 1

    m, before = Model(), torch.nn.Module.__call__
    compiled = torchsmith_tracer.compile(m)
    assert torch.equal(compiled(ones()), ones() + 1)
    changed = Model if owner == "its class" else torch.nn.Module
    with monkeypatch.context() as patch:
        patch.setattr(changed, "__call__", lambda self, a: before(self, a) * 3, raising=False)
        assert torch.equal(compiled(ones()), (ones() + 1) * 3)
    assert torch.equal(compiled(ones()), ones() + 1)


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


class Suspending:
    async def method(self, x):
        return x + 1

    async def __call__(self, x):
        return x + 2


async def coroutine(x, *, k=1):
    return x + k


async def async_generator(x):
    yield x


def generator(x, n=2):
    """Yields."""
    for i in range(n):
        yield x + i


def test_coroutines_and_generators_run_eagerly_and_say_so():
    one = torch.ones(1)
    run = torchsmith_tracer.compile(coroutine)
    assert inspect.iscoroutinefunction(run) and asyncio.run(run(one, k=3)) == 4
    run = torchsmith_tracer.compile(generator)
    assert inspect.isgeneratorfunction(run) and run.__doc__ == "Yields."
    assert list(run(one)) == [1, 2] and run(one).send(None) == 1
    assert inspect.isasyncgenfunction(torchsmith_tracer.compile(async_generator))
    (report,) = run._torchsmith_region.log.frames
    assert report.eager and report.break_.id == "TS-T054"
    suspending = Suspending()
    assert asyncio.run(torchsmith_tracer.compile(suspending.method)(one)) == 2
    assert asyncio.run(torchsmith_tracer.compile(suspending)(one)) == 3
    explanation = torchsmith_tracer.explain(generator)(one)
    assert "TS-T054" in str(explanation) and list(explanation.result) == [1, 2]
    assert torchsmith_tracer.compile(run) is not run  # once more, not twice
    with pytest.raises(errors.FullGraphError, match="generator"):
        torchsmith_tracer.compile(generator, fullgraph=True)


def test_a_wrapper_of_a_compiled_function_is_no_compiled_function():
    compiled = torchsmith_tracer.compile(scale)
    calls = []

    @functools.wraps(compiled)
    def wrapper(*args, **kwargs):
        calls.append(args)
        return -compiled(*args, **kwargs)

    x = torch.ones(2)
    expected = -scale(x)
    assert torch.equal(torchsmith_tracer.compile(wrapper)(x), expected)
    assert torch.equal(torchsmith_tracer.compile(lambda x: wrapper(x))(x), expected)
    assert torchsmith_tracer.explain(wrapper)(x).result.equal(expected)
    assert len(calls) == 3


def test_a_wrapper_of_a_disabled_function_is_compiled():
    disabled = torchsmith_tracer.disable(scale)
    wrapper = functools.wraps(disabled)(lambda x: x + 1)
    compiled = torchsmith_tracer.compile(wrapper, fullgraph=True)
    assert compiled is not wrapper
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert torchsmith_tracer.compile(disabled) is disabled


def test_a_compiled_function_may_be_replaced_by_its_wrapper():
    inner = {"fn": torchsmith_tracer.compile(lambda x: x + 1)}
    compiled = torchsmith_tracer.compile(lambda x: inner["fn"](x))
    assert compiled(torch.ones(1)) == 2
    first = inner["fn"]
    inner["fn"] = functools.wraps(first)(lambda x: first(x) * 10)
    assert compiled(torch.ones(1)) == 20


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


def test_a_mode_for_a_backend_without_modes_warns_once(recwarn):
    def modeless(gm, inputs):
        return gm.forward

    for mode in ("max-autotune", "max-autotune", None, "default", "reduce-overhead"):
        compiled = torchsmith_tracer.compile(scale, backend=modeless, mode=mode)
        assert torch.equal(compiled(ones()), scale(ones()))
    said = [str(w.message) for w in recwarn if issubclass(w.category, errors.TracerWarning)]
    assert len(said) == 2 and all("TS-T906" in text and "modeless" in text for text in said)
    assert "max-autotune" in said[0] and "reduce-overhead" in said[1]


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
