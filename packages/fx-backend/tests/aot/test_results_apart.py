"""Results of one compiled graph are differentiated one after another, as eager's are."""

import contextlib
import gc
import itertools
import weakref

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.aot.held import tensors_of
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)


pytestmark = pytest.mark.usefixtures("reference_machine")


def leaf(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_()


def twice_the_sum(a, b):
    first, second = a.sin().sum(), (b.exp() * b).sum()
    return first, second, first + second


def statistics(a, b):
    variance, mean = torch.var_mean(a * a, 0)
    return variance, mean, b.tanh()


def trunk(a, b):
    h = (a @ b).tanh()
    return h.exp().mean(), h, (a.sin() * 2).sum()


# Each gives results from two leaves.
PROGRAMS = {
    "nothing in common": lambda a, b: ((a.sin() * 2).sum(), b.cos().sum()),
    "inputs in common": lambda a, b: (a.sin().sum(), (b.cos() * a).sum(), (a * b).sum()),
    "a chain": twice_the_sum,
    "a common trunk": trunk,
    "nothing saved": lambda a, b: ((a + b).sum(), (a + b).exp().sum(), a * 2),
    "one node of two results": statistics,
    "views": lambda a, b: (a.sin().t(), b.exp()[0], b.exp()),
    "parts of one tensor": lambda a, b: (a[0].sin(), a[1].cos(), (a * b)[2].tanh()),
    "written over": lambda a, b: (a.nan_to_num(0.5).fill_(1), a.clamp_min(0), (a * b).sum()),
    "input as a result": lambda a, b: (a.view(-1), a.square(), b.sigmoid()),
}


def outcome(f, results, order, retain=(), write=None):
    """Gradients and errors of one call whose results are differentiated in this order."""
    given = [leaf(0), leaf(1)]
    found = f(*given)
    notes = []
    with torch.no_grad():
        if write is not None:
            [*given, *found][write].add_(1)
    for number in order:
        try:
            tangent = torch.full_like(found[number], 1.5)
            found[number].backward(tangent, retain_graph=number in retain)
        except RuntimeError as error:
            notes.append(str(error).partition(":")[0])
            break  # what a pass that raised has let go of is nobody's promise
    return notes, [x.grad for x in given] if not notes else []


def same(ours, theirs):
    assert ours[0] == theirs[0]
    for mine, true in zip(ours[1], theirs[1], strict=True):
        torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_differentiated_in_any_order(name):
    program = PROGRAMS[name]
    run = compile_training(program, [leaf(0), leaf(1)], SETTINGS)
    count = len(run(leaf(0), leaf(1)))
    for order in itertools.product(range(count), repeat=3):
        same(outcome(run, count, order), outcome(program, count, order))
        same(outcome(run, count, order, order[:1]), outcome(program, count, order, order[:1]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_is_an_error_for_the_results_that_need_what_was_written(name):
    program = PROGRAMS[name]
    run = compile_training(program, [leaf(0), leaf(1)], SETTINGS)
    count = len(run(leaf(0), leaf(1)))
    for place, number in itertools.product(range(count + 2), range(count)):
        ours, theirs = (outcome(f, count, [number], (), place) for f in (run, program))
        if not theirs[0]:
            same(ours, theirs)
        assert len(ours[0]) >= len(theirs[0])


def test_each_result_lets_go_of_its_own():
    """Of what is saved, the part of a result goes with its backward pass, unless retained."""

    def program(a, b):
        left, right = (a @ a).tanh(), (b @ b + a).sigmoid()
        return (left @ left).sum(), (right @ right).sum()

    run = compile_training(program, [leaf(0), leaf(1)], SETTINGS)
    for first, retain in itertools.product((0, 1), (False, True)):
        given = [leaf(0), leaf(1)]
        results = run(*given)
        saved = results[0].grad_fn.call.held.nodes
        parts = [
            [StorageWeakRef(t.untyped_storage()) for t in tensors_of(node) if t.grad_fn is None]
            for node in saved
        ]
        own = {StorageWeakRef(x.untyped_storage()).cdata for x in given}
        parts = [[s for s in part if s.cdata not in own] for part in parts]
        assert len(parts) == 2 and all(parts)
        alive = lambda: sum(any(not s.expired() for s in part) for part in parts)  # noqa: E731
        results[first].backward(retain_graph=retain)
        assert alive() == (2 if retain else 1)
        results[1 - first].backward()
        assert alive() == (1 if retain else 0)
        memory = weakref.ref(results[0].grad_fn)
        del results, saved
        gc.collect()
        assert memory() is None and alive() == 0


def test_derivatives_of_derivatives_of_one_result_after_another():
    def program(a, b):
        return a.pow(3).sum(), (b.pow(3) * b).sum()

    run = compile_training(program, [leaf(0), leaf(1)], SETTINGS)
    sides = []
    for f in (run, program):
        given = [leaf(0), leaf(1)]
        found = []
        results = f(*given)
        for result, x in zip(results, given):
            (grad,) = torch.autograd.grad(result, x, create_graph=True)
            (again,) = torch.autograd.grad(grad.square().sum(), x)
            found += [grad, again]
        sides.append(found)
    torch.testing.assert_close(*sides)


def towers(a, b):
    left = (a @ a).tanh()
    return left.sum(), left.exp(), (b @ b).sigmoid().sum(), b * 2


@pytest.mark.parametrize("order", list(itertools.permutations(range(4), 3)))
def test_a_backward_pass_reaches_what_eagers_reaches(order):
    """No hook hears of a pass that does not come by its tensor, and what lies before the inputs is
    let go of only by a pass that comes there."""
    run = compile_training(towers, [leaf(0) * 1, leaf(1) * 1], SETTINGS)
    sides = []
    for f in (run, towers):
        heard, leaves = [], [leaf(0), leaf(1)]
        given = [x.sin() for x in leaves]
        for name, x, y in zip("ab", leaves, given):
            x.register_post_accumulate_grad_hook(lambda p, n=name: heard.append(n + " has it"))
            y.register_hook(lambda g, n=name: heard.append((n, g is None)))
        results = f(*given)
        errors = []
        for number in order:
            before = len(heard)
            try:
                results[number].backward(torch.ones_like(results[number]))
            except RuntimeError as error:
                errors.append(str(error)[:60])
                del heard[before:]
        sides.append((heard, errors, [] if errors else [x.grad for x in leaves]))
    assert sides[0][:2] == sides[1][:2]
    torch.testing.assert_close(sides[0][2], sides[1][2])


def test_results_that_are_dropped_let_go_of_their_own():
    run = compile_training(towers, [leaf(0) * 1, leaf(1) * 1], SETTINGS)
    given = [leaf(0) * 1, leaf(1) * 1]
    memory = [weakref.ref(x) for x in given]
    first, second, third, fourth = run(*given)
    del given, third, fourth
    gc.collect()
    for each in (first, second):
        assert each.grad_fn is first.grad_fn
    first.sum().backward()
    assert [m() is None for m in memory] == [True, True]


@pytest.mark.parametrize("order", [(0,), (1,), (0, 1), (1, 0)])
@pytest.mark.parametrize("layout", ["rows", "expanded", "columns", "gaps"])
@pytest.mark.parametrize("program", ["padded", "scaled by a statistic"])
def test_a_tangent_of_another_layout_takes_what_its_own_result_holds(program, layout, order):
    def padded(x):
        tiled = x.tile([2, 2])
        return x.var(), torch.nn.functional.pad(tiled, [1, 0], mode="reflect")

    def scaled(x):
        return x.std(), torch.nn.functional.pad(x * 2, [2, 1], mode="reflect")

    fn = padded if program == "padded" else scaled
    compiled = compile_training(torch.fx.symbolic_trace(fn), [leaf(0)], SETTINGS)
    tangents = {
        "rows": lambda y: torch.full_like(y, 0.5),
        "expanded": lambda y: y.new_full((), 0.5).expand(y.shape),
        "columns": lambda y: torch.full_like(y.t().contiguous(), 0.5).t() if y.dim() else y * 0,
        "gaps": lambda y: y.new_full((*y.shape, 2), 0.5)[..., 0],
    }
    for _ in range(2):
        ours, eager = leaf(1), leaf(1)
        found, expected = compiled(ours), fn(eager)
        for i in order:
            for x, results in ((ours, found), (eager, expected)):
                y = results[i]
                y.backward(tangents[layout](y.detach()))
            torch.testing.assert_close(ours.grad, eager.grad)
        for results in (found, expected):
            with pytest.raises(RuntimeError, match="second time"):
                results[order[0]].backward(tangents["rows"](results[order[0]].detach()))


@pytest.mark.parametrize("kind", ["leaves", "with a history", "hooked"])
def test_parts_of_what_is_saved_have_nodes_where_they_need_some(kind):
    """A node is for what has a history, and for hooks, which see each tensor as eager's do."""
    given = [leaf(0), leaf(1)] if kind != "with a history" else [leaf(0) * 1, leaf(1) * 1]
    packed = []

    def pack(tensor):
        packed.append(tensor.detach().clone())
        return tensor.detach() * 1

    outcomes = []
    for f in (compile_training(trunk, given, SETTINGS), trunk):
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
            if kind == "hooked"
            else contextlib.nullcontext()
        ):
            results = f(*given)
        if f is not trunk:
            nodes = results[0].grad_fn.call.held.nodes
            assert len(nodes) > 1
            assert {isinstance(node, list) for node in nodes} == {kind == "leaves"}
            assert bool(packed) == (kind == "hooked")
        total = sum(r.sum() for r in results)
        outcomes.append(torch.autograd.grad(total, given))
    for mine, true in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, true)
