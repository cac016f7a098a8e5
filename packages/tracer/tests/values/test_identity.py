"""Numbers from ``id()``."""

import collections.abc

import pytest
import torch
import torchsmith_tracer as tracer


def test_the_identity_of_an_object_is_a_key_afterwards():
    """The number is made again where it is needed: it differs between calls."""
    table = {}

    def program(obj, x):
        table[id(obj)] = x + 1
        return id(obj)

    compiled = tracer.compile(program, fullgraph=True)
    for _ in range(2):
        obj = [1]
        assert compiled(obj, torch.ones(2)) == id(obj)
        assert torch.equal(table[id(obj)], torch.full((2,), 2.0))


def test_a_tensor_hashes_as_its_identity():
    def program(x):
        y = x + 1
        return hash(x) == id(x), hash(y) == id(y), hash(y) == hash(x), {hash(x): y}[id(x)]

    compiled = tracer.compile(program, backend="eager")
    for x in (torch.ones(2), torch.zeros(2)):
        assert compiled(x)[:3] == (True, True, False)
        assert torch.equal(compiled(x)[3], x + 1)


def test_whether_tensors_are_one_memory_is_asked_of_them():
    def program(x):
        return x.is_set_to(x), x.is_set_to(x.view(-1)), x.is_set_to(x.clone())

    compiled = tracer.compile(program, backend="eager")
    x = torch.ones(2)
    assert compiled(x) == program(x)


COMPUTED = [
    lambda o: id(o) & 255,
    lambda o: (id(o) ^ id(o), id(o) % 16, 1 + id(o) > id(o), id(o) // 2 * 1.0 > 5 > -id(o)),
    lambda o: (hex(id(o)), f"{id(o):x}", f"{id(o)}", "%d" % id(o), f"<at {id(o):#x}>"),
    lambda o: (sum([id(o)]) == id(o), max(id(o), 0) == id(o), {id(o) & 7: 1}),
    lambda o: id(o) + (o.n is None),
]


@pytest.mark.parametrize("made", ["given", "tensor", "born"])
@pytest.mark.parametrize("compute", COMPUTED)
def test_computing_with_an_address(compute, made):
    class Own:
        n = None

        def __hash__(self):
            return int(id(self) & 0x7FFFFFFF)

    def f(x, o):
        o = o if made != "born" else Own()
        try:
            found = compute(o)
        except TypeError as e:
            found = str(e)
        return x + 1, found if made != "born" else [type(v) for v in [found]]

    o, x = Own() if made != "tensor" else torch.ones(2), torch.ones(2)
    o.n = 1
    compiled = tracer.compile(f, backend="eager")
    for _ in range(3):
        assert compiled(x, o)[1] == f(x, o)[1]
    keys = tracer.compile(lambda x: (x + 1, len({o, o, 1})), fullgraph=True)
    assert keys(x)[1] == 2


def test_a_compiled_module_has_an_identity_of_its_own():
    module, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    same = tracer.compile(module)

    def calls(run):
        seen: dict[int, int] = {}
        for m in (same, same, module, same, other):
            yield run(m, seen, torch.zeros(1)), list(seen.items())

    def program(m, seen, x):
        seen[id(m)] = seen.get(id(m), 0) + 1
        return x + 1, len(seen), m in {m: 1}, hash(m)

    assert list(calls(tracer.compile(program))) == list(calls(program))


def test_parametrizations_of_a_compiled_module_are_cached():
    """Torch keeps them by the ``id`` of the module that they were registered on."""
    torch.manual_seed(0)
    module, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    compiled = tracer.compile(module, fullgraph=True)
    torch.nn.utils.parametrize.register_parametrization(compiled, "weight", torch.nn.Tanh())
    expected = module(x)
    for _ in range(2):
        with torch.nn.utils.parametrize.cached():
            assert torch.equal(compiled(x), expected) and torch.equal(compiled(x), expected)
        assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("made", [False, True])
def test_hashes_that_the_library_computes(made):
    def program(found):
        items = [object(), object()] if made else found
        return hash(frozenset(items)) == collections.abc.Set._hash(frozenset(items))

    assert tracer.compile(program, backend="eager")([object(), object(), object()])


class OwnTuple(tuple):
    pass


Pair = collections.namedtuple("Pair", "a b")


def outcome(fn):
    try:
        return fn()
    except TypeError as e:
        return str(e)


def tuples_that_stay(whole, own, pair):
    empty, one = whole[:0], whole[:1]
    sums = [whole + () is whole, () + whole is whole, whole + empty is whole, empty * 3 is empty]
    products = [whole * 1 is whole, 1 * whole is whole, whole.__mul__(True) is whole]
    slices = [whole[:] is whole, whole[0:] is whole, whole[-9:9:1] is whole, whole[0:2] is whole]
    others = [one[::-1] is one, whole[::2] is whole, whole * 2 is whole, (whole + one) is whole]
    return sums, products, slices, others, outcome(lambda: one * 1.0)


def tuples_of_subclasses_that_do_not(whole, own, pair):
    made = [own[:], own * 1, own + (), () + own, pair[:], pair[0:2], pair * 1, pair + (), () + pair]
    return made, [type(each) for each in made], own * 1 is own * 1, own[:] is own[:]


@pytest.mark.parametrize("program", [tuples_that_stay, tuples_of_subclasses_that_do_not])
@pytest.mark.parametrize("made", [False, True])
def test_which_tuple_it_is(program, made):
    def within(a, b):
        return program((a, b), OwnTuple((a, b)), Pair(a, b))

    args = (object(), object())
    if not made:
        args = (args, OwnTuple(args), Pair(*args))
    run = within if made else program
    assert tracer.compile(run, backend="eager", fullgraph=True)(*args) == run(*args)
