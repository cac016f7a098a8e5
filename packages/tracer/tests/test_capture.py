"""Straight capture: values, containers, aliasing, inputs and outputs, numbered as in the spec."""

import collections
import dataclasses
import enum
import functools
import math

import pytest
import torch
import torchsmith_tracer

SCALE = 3
WEIGHT = torch.arange(3.0)


def ones(*shape):
    return torch.ones(*shape)


def test_01_one_graph_for_straight_code(check):
    check(lambda a, b: torch.relu(a) + b, ones(2, 3), ones(2, 3), graphs=1)


def test_17_nan_does_not_loop(check):
    check(lambda a, k: a * k, ones(2), float("nan"), graphs=1, calls=3)


@pytest.mark.parametrize(
    "values",
    [(True, False), ("x", "y"), (None, 1), (1 + 2j, 2j), (torch.float32, torch.int32)],
)
def test_18_constants_recompile_once_per_value(values, capture):
    def f(a, k):
        if k is None:
            return a
        if isinstance(k, torch.dtype):
            return a.to(k)
        return a * len(k) if isinstance(k, str) else a * k

    compiled = torchsmith_tracer.compile(f, backend=capture)
    for k in (*values, *values):
        got, expected = compiled(ones(2), k), f(ones(2), k)
        assert got.dtype == expected.dtype and torch.equal(got, expected)
    assert capture.n <= 2


def test_19_global_int(capture):
    global SCALE
    compiled = torchsmith_tracer.compile(lambda a: a * SCALE, backend=capture)
    try:
        assert compiled(ones(1)).item() == 3
        SCALE = 4
        assert compiled(ones(1)).item() == 4
    finally:
        SCALE = 3
    assert capture.n == 2


def test_20_closure_int(capture):
    k = 3

    def f(a):
        return a * k

    compiled = torchsmith_tracer.compile(f, backend=capture)
    assert compiled(ones(1)).item() == 3
    k = 5
    assert compiled(ones(1)).item() == 5


def test_21_default_of_an_inlined_helper(check):
    def helper(a, k=3, *, j=2):
        return a * k + j

    check(lambda a: helper(a) + helper(a, 4, j=1), ones(2), graphs=1)


def test_22_list_length_and_type(capture):
    def f(xs):
        out = xs[0]
        for x in xs[1:]:
            out = out + x
        return out

    compiled = torchsmith_tracer.compile(f, backend=capture)
    x, y = ones(2), ones(2) * 2
    for xs in ([x, y], [x, y, x], (x, y), [x, y]):
        assert torch.equal(compiled(xs), f(xs))
    assert capture.n == 3


def test_23_only_used_elements_become_inputs(check, capture):
    check(lambda xs: xs[1] + 1, [ones(2), ones(2)], graphs=1)
    assert len(capture.placeholders()) == 1


def test_25_aliased_containers():
    def f(a, b, x):
        a.append(x)
        return len(b)

    compiled = torchsmith_tracer.compile(f)
    both = []
    assert compiled(both, both, ones(1)) == 1
    assert compiled([], [], ones(1)) == 0


def test_30_alias_of_two_inputs(capture):
    compiled = torchsmith_tracer.compile(lambda a, b: a * b, backend=capture)
    x, y = ones(2), ones(2) * 2
    compiled(x, x)
    assert len(capture.placeholders()) == 1
    assert torch.equal(compiled(x, y), y)
    assert len(capture.placeholders()) == 2
    assert torch.equal(compiled(y, y), y * y)


def test_30_local_alias_of_a_global():
    def f(a):
        return a + WEIGHT

    compiled = torchsmith_tracer.compile(f)
    assert torch.equal(compiled(WEIGHT), WEIGHT * 2)
    assert torch.equal(compiled(ones(3)), ones(3) + WEIGHT)


def test_30_alias_with_mutation():
    def f(a, b):
        a.add_(1)
        return b * 2

    compiled = torchsmith_tracer.compile(f)
    for distinct in (True, False, True):
        x = ones(2)
        y = ones(2) if distinct else x
        assert torch.equal(compiled(x, y), ones(2) * (2 if distinct else 4))
        assert torch.equal(x, ones(2) * 2)


def test_32_unused_inputs_are_pruned(check, capture):
    check(lambda a, b: a + 1, ones(2), ones(2), graphs=1)
    assert len(capture.placeholders()) == 1


def test_34_no_op_frames_never_compile(check):
    check(lambda a, b: b, ones(2), ones(2), graphs=0)


def test_35_identity_of_outputs(capture):
    compiled = torchsmith_tracer.compile(lambda a: (a, a + 1), backend=capture)
    x = ones(2)
    assert compiled(x)[0] is x

    def twice(a):
        b = a + 1
        return [b, b, {"b": b}]

    got = torchsmith_tracer.compile(twice, backend=capture)(x)
    assert got[0] is got[1] is got[2]["b"]
    assert len(capture.outputs()) == 1


def test_36_empty_no_grad_leaves_no_node(check, capture):
    def empty(a):
        with torch.no_grad():
            pass
        return a + 1

    check(empty, ones(2), graphs=1)
    assert len(capture.targets()) == 1


def test_views_and_in_place_changes(check):
    def f(a):
        b = a[0]
        b.mul_(2)
        a[1, 0] = 7
        return a.t(), b

    check(f, torch.arange(6.0).reshape(2, 3), graphs=1)


def test_containers_of_all_kinds(check):
    Point = collections.namedtuple("Point", "x y")

    @dataclasses.dataclass
    class Pair:
        left: torch.Tensor
        right: int = 2

    globals()["Pair"] = Pair

    def f(a, d):
        out = {"a": a + 1, **d}
        out["list"] = [*d.values(), a]
        ordered = collections.OrderedDict(first=a * 2)
        queue = collections.deque([a], maxlen=2)
        queue.append(a + 5)
        counts = collections.defaultdict(list)
        counts["k"].append(a)
        p = Point(a, y=a - 1)
        return out, ordered, tuple(queue), dict(counts), tuple(p), {1, 2}, Pair(a * 3).left

    check(f, ones(2), {"x": ones(1), "y": 3}, graphs=1)


def test_objects_made_while_tracing():
    class Node:
        def __init__(self, value, parent=None):
            self.value = value
            self.parent = parent
            self.children = []
            if parent is not None:
                parent.children.append(self)

    def f(a):
        root = Node(a)
        Node(a + 1, root)
        return root

    got = torchsmith_tracer.compile(f, fullgraph=True)(ones(2))
    assert type(got) is Node
    assert got.children[0].parent is got
    assert torch.equal(got.children[0].value, ones(2) + 1)


def test_functions_made_while_tracing():
    def f(a):
        b = a * 2

        def add(x, k=3):
            return x + b + k

        return add

    add = torchsmith_tracer.compile(f, fullgraph=True)(ones(2))
    assert torch.equal(add(ones(2)), ones(2) * 6)


def test_python_of_all_sorts(check):
    class Mode(enum.Enum):
        FAST = 1
        SLOW = 2

    def f(a, mode, name, *rest, scale=1.0, **options):
        total = sum(rest) + len(options)
        label = f"{name!r:>8}|{total:03d}"
        squares = {k: k * k for k in range(4) if k % 2}
        pairs = list(zip(rest, reversed(rest), strict=True))
        add = functools.partial(torch.add, alpha=2)
        best = max(rest, key=lambda v: -v)
        (first, *others), last = [rest, total]
        b = a * scale if mode is Mode.FAST else a
        b = functools.reduce(lambda x, y: x + y, [b] * 3)
        b = add(b, a) * math.sqrt(16) + best + sum(squares.values())
        try:
            options["missing"]
        except KeyError as e:
            label += str(e)
        walrus = (n := len(others)) + n
        return b, label, pairs, first, others, last, walrus, isinstance(a, torch.Tensor)

    check(f, ones(2), Mode.FAST, "x", 3, 1, 2, scale=0.5, key=1, graphs=1)


def test_generators_and_iterators(check):
    def numbers(n):
        for i in range(n):
            yield i
        return "done"

    def f(a):
        out = [a * i for i in numbers(3)]
        for i, x in enumerate(out):
            a = a + x * i
        return a, list(map(lambda v: v + 1, numbers(2))), dict(enumerate("ab"))

    check(f, ones(2), graphs=1)


def test_methods_properties_and_inheritance(check):
    class Base:
        def __init__(self, k):
            self.k = k

        @property
        def double(self):
            return self.k * 2

        def run(self, x):
            return x * self.double

        def __call__(self, x):
            return self.run(x)

        def __getitem__(self, i):
            return self.k + i

    class Child(Base):
        def run(self, x):
            return super().run(x) + 1

        @classmethod
        def make(cls, k):
            return cls(k)

        @staticmethod
        def triple(x):
            return x * 3

    def f(a, obj):
        made = Child.make(4)
        return obj(a) + made(a), Child.triple(a), obj[5], made.double

    check(f, ones(2), Child(3), graphs=1)


def test_37_ambient_state_is_guarded(capture):
    compiled = torchsmith_tracer.compile(lambda a: a + 1, backend=capture)
    x = ones(2)
    compiled(x)
    with torch.no_grad():
        compiled(x)
        compiled(x)
    assert capture.n == 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled(x)
    assert capture.n == 3
    torch.use_deterministic_algorithms(True)
    try:
        compiled(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert capture.n == 4
    torch.set_default_dtype(torch.float64)
    try:
        compiled(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert capture.n == 5
    compiled(x)
    assert capture.n == 5


def test_04_dtype_layout_and_requires_grad(capture):
    compiled = torchsmith_tracer.compile(lambda a: a + 1, backend=capture)
    x = torch.arange(6.0).reshape(2, 3)
    variants = [x, x.double(), x.clone().requires_grad_(), torch.arange(6.0).reshape(3, 2).t()]
    for v in (*variants, *variants):
        got, expected = compiled(v), v + 1
        assert torch.equal(got, expected)
        assert (got.dtype, got.stride()) == (expected.dtype, expected.stride())
        assert got.requires_grad == expected.requires_grad
    assert capture.n == 4


def test_42_torch_random(check):
    check(lambda a: a + torch.rand(3), ones(3), graphs=1)


def test_69_node_provenance(capture):
    def f(a):
        b = a + 1
        return torch.nn.functional.gelu(b)

    torchsmith_tracer.compile(f, backend=capture)(ones(2))
    nodes = [n for n in capture.graphs[0].graph.nodes if n.op.startswith("call")]
    assert "b = a + 1" in nodes[0].meta["stack_trace"]
    assert __file__ in nodes[1].meta["stack_trace"]
