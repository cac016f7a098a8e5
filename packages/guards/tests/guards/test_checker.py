"""Checkers: every kind holds for what was seen, fails for what changed, and explains itself."""

import gc
import linecache
import traceback
import types
import weakref
from collections import OrderedDict

import pytest
import torch
from torchsmith_guards import (
    GLOBAL_STATE,
    SHAPES,
    ArraySource,
    AttrSource,
    CallSource,
    ClassDictSource,
    ClosureSource,
    ContentSource,
    DefaultsSource,
    FunctionSource,
    GlobalState,
    Guard,
    GuardKind,
    GuardSet,
    ItemSource,
    LocalSource,
    NamespaceSource,
    PinnedSource,
    ResultSource,
    ShapeEnv,
    TensorPropertySource,
    TensorSpec,
    tensor_of,
)
from torchsmith_guards.errors import UnguardableSourceError

K = GuardKind
X = LocalSource("x")
Y = LocalSource("y")


class Box:
    """An object with attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def checker(*guards, params=("x",), bind=None):
    return GuardSet(guards).compile(params, bind)


def assert_fails(made, *args):
    """The generated check and the slow explanation agree that the guards do not hold."""
    assert made.check(*args) is False, made.code
    failures = made.explain(*args)
    assert failures
    assert all(str(f) for f in failures)


def assert_holds(made, *args):
    assert made.check(*args) is True, made.code
    assert made.explain(*args) == []


def plain(a, b=1, *, c=2):
    return a


def other(a, b=1, *, c=2):
    return a


NAN = float("nan")
TENSOR = torch.arange(6.0).reshape(2, 3)
with torch.inference_mode():
    INFERENCE = torch.ones(2)
ONE, TWO = object(), object()

# (id, kind, expected, values for which it holds, values for which it fails)
CASES = [
    ("type", K.TYPE, list, [[], [1]], [(), None, type("L", (list,), {})()]),
    ("id", K.ID, ONE, [ONE], [TWO, None]),
    ("id of a class", K.ID, Box, [Box], [type("Box", (), {})]),
    ("int", K.CONSTANT, 3, [3], [4, 3.0, True, "3", None]),
    ("big int", K.CONSTANT, 10**30, [10**30], [10**30 + 1]),
    ("bool", K.CONSTANT, True, [True], [1, False, 1.0]),
    ("none", K.CONSTANT, None, [None], [0, False]),
    ("str", K.CONSTANT, "a\n'\"", ["a\n'\""], ["a", b"a", None]),
    ("bytes", K.CONSTANT, b"a", [b"a"], ["a", b"b"]),
    ("float", K.CONSTANT, 1.5, [1.5], [1.25, 1, NAN]),
    ("float of an int value", K.CONSTANT, 1.0, [1.0], [1, True]),
    ("nan", K.CONSTANT, NAN, [NAN, float("nan")], [0.0]),
    ("zero", K.CONSTANT, 0.0, [0.0], [-0.0, 0]),
    ("minus zero", K.CONSTANT, -0.0, [-0.0], [0.0]),
    ("inf", K.CONSTANT, float("inf"), [float("inf")], [float("-inf")]),
    ("complex", K.CONSTANT, 1 + 2j, [1 + 2j], [1 - 2j, 1]),
    ("tuple", K.CONSTANT, (1, "a", (2.0,)), [(1, "a", (2.0,))],
     [(1, "a", (2,)), (True, "a", (2.0,))]),
    ("slice", K.CONSTANT, slice(1, 2), [slice(1, 2)], [slice(1, 3), slice(True, 2)]),
    ("range", K.CONSTANT, range(3), [range(3)], [range(4)]),
    ("frozenset", K.CONSTANT, frozenset({1}), [frozenset({1})], [frozenset({True})]),
    ("dtype", K.CONSTANT, torch.float32, [torch.float32], [torch.float64, "torch.float32"]),
    ("device", K.CONSTANT, torch.device("cpu"), [torch.device("cpu")], [torch.device("meta")]),
    ("size", K.CONSTANT, torch.Size((2, 3)), [TENSOR.shape], [torch.Size((2, 4)), (2, 3)]),
    ("length", K.LENGTH, (list, 2), [[1, 2]], [[1], (1, 2), [1, 2, 3]]),
    ("dict keys", K.DICT_KEYS, (dict, ("a", "b")), [{"a": 1, "b": 2}],
     [{"b": 1, "a": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, OrderedDict(a=1, b=2)]),
    ("int keys", K.DICT_KEYS, (dict, (1, 2)), [{1: 0, 2: 0}], [{True: 0, 2: 0}, {1: 0, 2.0: 0}]),
    ("object keys", K.DICT_KEYS, (dict, (ONE, "a")), [{ONE: 0, "a": 0}], [{TWO: 0, "a": 0}]),
    ("no keys", K.DICT_KEYS, (dict, ()), [{}], [{"a": 1}]),
    ("key present", K.DICT_CONTAINS, ("a", True), [{"a": 1}], [{}, None]),
    ("key absent", K.DICT_CONTAINS, (ONE, False), [{}, {TWO: 1}], [{ONE: 1}]),
    ("attribute present", K.HASATTR, ("n", True), [Box(n=1)], [Box()]),
    ("attribute absent", K.HASATTR, ("n", False), [Box()], [Box(n=1)]),
    ("is none", K.NONE, None, [None], [0]),
    ("code", K.CODE, plain.__code__, [plain, types.FunctionType(plain.__code__, {})], [other, len]),
    ("empty", K.EMPTY, None, [{}, OrderedDict(), []], [{1: 1}, [0]]),
    ("tensor", K.TENSOR, TensorSpec.of(TENSOR), [TENSOR, torch.ones(2, 3)],
     [torch.ones(3, 2).t(), torch.ones(2, 4), torch.ones(6), torch.ones(2, 3, dtype=torch.float64),
      torch.ones(2, 3, requires_grad=True), torch.nn.Parameter(TENSOR),
      torch.ones(2, 3, device="meta"),
      torch.ones(2, 3).to_sparse(), torch._neg_view(TENSOR), None, 3, TENSOR.tolist()]),
    ("strided tensor", K.TENSOR, TensorSpec.of(torch.ones(4, 6)[:, ::2]),
     [torch.ones(4, 6)[:, 1::2]],
     [torch.ones(4, 3), torch.ones(4, 7)[:, :6:2]]),
    ("size-1 tensor", K.TENSOR, TensorSpec.of(torch.ones(1, 3)), [torch.zeros(1, 3)],
     [torch.ones(2, 3)[::2].as_strided((1, 3), (6, 1)), torch.ones(1, 1)]),
    ("scalar tensor", K.TENSOR, TensorSpec.of(torch.tensor(1.0)), [torch.tensor(2.0)],
     [torch.ones(1), torch.tensor(1.0).to_sparse()]),
    ("expanded", K.TENSOR, TensorSpec.of(torch.ones(1).expand(3)), [torch.zeros(1).expand(3)],
     [torch.ones(3), torch.ones(3).to_sparse()]),
    ("empty tensor", K.TENSOR, TensorSpec.of(torch.ones(0, 3)),
     [torch.ones(0, 3)], [torch.ones(3, 0)]),
    ("opaque", K.TENSOR, TensorSpec.of(TENSOR), [TENSOR], [TENSOR.to_mkldnn()]),
    ("complex tensor", K.TENSOR, TensorSpec.of(torch.ones(2, dtype=torch.complex64)),
     [torch.zeros(2, dtype=torch.complex64)], [torch.ones(2, dtype=torch.complex64).conj()]),
    ("conjugate", K.TENSOR, TensorSpec.of(torch.ones(2, dtype=torch.complex64).conj()),
     [torch.ones(2, dtype=torch.complex64).conj()],
     [torch.ones(2, dtype=torch.complex64)]),
    ("parameter", K.TENSOR, TensorSpec.of(torch.nn.Parameter(TENSOR)),
     [torch.nn.Parameter(TENSOR + 1)],
     [TENSOR, torch.nn.Parameter(TENSOR, requires_grad=False)]),
    ("int tensor", K.TENSOR, TensorSpec.of(torch.tensor([1, 2])), [torch.tensor([3, 4])],
     [torch.tensor([1, 2], dtype=torch.int32)]),
    ("dynamic rows", K.TENSOR, TensorSpec.of(torch.ones(4, 3), {0}),
     [torch.ones(2, 3), torch.ones(9, 3)],
     [torch.ones(4, 5), torch.ones(3, 4).t(), torch.ones(4), torch.ones(4, 3, 1)]),
    ("writable", K.WRITABLE, None, [TENSOR, torch.nn.Parameter(TENSOR)], [INFERENCE, None]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "expected", "same", "changed"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_every_kind(kind, expected, same, changed):
    made = checker(Guard(X, kind, expected))
    for value in same:
        assert_holds(made, value)
    for value in changed:
        assert_fails(made, value)


def test_every_kind_is_tested():
    single = {c[1] for c in CASES}
    assert single | {K.GLOBAL_STATE, K.SAME_OBJECT, K.NOT_SAME, K.DISJOINT, K.SHAPE} == set(
        GuardKind
    )


def test_memory_that_is_shared_by_arrays_and_tensors():
    np = pytest.importorskip("numpy")
    array, tensor = ArraySource(LocalSource("x")), LocalSource("y")
    made = checker(Guard(array, K.DISJOINT, (tensor,)), params=("x", "y"))
    x = np.arange(6.0)
    frozen = x.copy()
    frozen.flags.writeable = False
    for y in (x, x[2:], x[::2]):
        assert made.check(x, torch.from_numpy(y.copy()))
        assert not made.check(x, torch.from_numpy(y))
    assert made.check(x[:3], torch.from_numpy(x[3:])) and made.check(frozen, torch.from_numpy(x))
    assert not made.check(frozen, tensor_of(frozen)) and not frozen.flags.writeable
    assert not made.check(np.array(["a"]), torch.ones(1)) and not made.check([1], torch.ones(1))
    assert "shared memory" in str(made.explain(x, torch.from_numpy(x[1:]))[0].new)


# --- paths ---------------------------------------------------------------------------------------


def make_closure(value):
    def inner():
        return value

    return inner


def test_paths_reach_nested_objects():
    tensor = torch.ones(2)
    tensor.grad = torch.ones(2)
    closure = make_closure(7)
    box = Box(items=[{"k": 5}], f=plain, g=closure, ref=weakref.ref(plain), t=tensor)
    paths = [
        (ItemSource(ItemSource(AttrSource(X, "items"), 0), "k"), 5),
        (DefaultsSource(AttrSource(X, "f"), 0), 1),
        (DefaultsSource(AttrSource(X, "f"), "c"), 2),
        (ClosureSource(AttrSource(X, "g"), 0), 7),
        (ItemSource(ContentSource(ItemSource(AttrSource(X, "items"), 0), "keys", dict), 0), "k"),
        (TensorPropertySource(AttrSource(X, "t"), "size", 0), 2),
        (TensorPropertySource(AttrSource(X, "t"), "storage_offset"), 0),
    ]
    guards = [Guard(source, K.CONSTANT, value) for source, value in paths]
    guards += [
        Guard(X, K.TYPE, Box),
        Guard(CallSource(AttrSource(X, "ref")), K.ID, plain),
        Guard(AttrSource(AttrSource(X, "t"), "grad"), K.TENSOR, TensorSpec.of(tensor.grad)),
    ]
    made = checker(*guards)
    assert_holds(made, box)
    box.items[0]["k"] = 6
    assert_fails(made, box)
    box.items[0]["k"] = 5
    assert_holds(made, box)
    tensor.grad = None
    assert_fails(made, box)


@pytest.mark.parametrize("broken", [None, Box(), Box(items=[]), Box(items=[{}]), Box(items=3)])
def test_missing_paths_do_not_hold(broken):
    made = checker(Guard(ItemSource(ItemSource(AttrSource(X, "items"), 0), "k"), K.CONSTANT, 5))
    assert_fails(made, broken)


def test_user_exceptions_while_fetching_do_not_escape():
    class Angry:
        @property
        def value(self):
            raise ValueError("no")

    assert_fails(checker(Guard(AttrSource(X, "value"), K.NONE)), Angry())


def test_roots_of_all_kinds():
    closure = make_closure(7)
    namespace = {"scale": 2.0}
    modules = {"pkg.mod": {"flag": True}}
    made = checker(
        Guard(ClosureSource(FunctionSource(), 0), K.CONSTANT, 7),
        Guard(ItemSource(NamespaceSource(), "scale"), K.CONSTANT, 2.0),
        Guard(ItemSource(NamespaceSource("pkg.mod"), "flag"), K.CONSTANT, True),
        Guard(NamespaceSource(), K.DICT_CONTAINS, ("len", False)),
        Guard(LocalSource("bound"), K.TYPE, Box),
        params=(),
        bind={"F": closure, "G": namespace, "M": modules, "bound": Box()},
    )
    assert_holds(made)
    closure.__closure__[0].cell_contents = 8
    assert_fails(made)
    closure.__closure__[0].cell_contents = 7
    namespace["len"] = len
    assert_fails(made)
    del namespace["len"]
    modules["pkg.mod"]["flag"] = False
    assert_fails(made)
    modules["pkg.mod"]["flag"] = True
    del namespace["scale"]
    assert_fails(made)


def test_roots_as_parameters():
    guards = [
        Guard(ClosureSource(FunctionSource(), 0), K.CONSTANT, 7),
        Guard(ItemSource(NamespaceSource(), "n"), K.CONSTANT, 1),
        Guard(ItemSource(NamespaceSource("m"), "n"), K.CONSTANT, 2),
    ]
    made = checker(*guards, params=("F", "G", "M"))
    assert_holds(made, make_closure(7), {"n": 1}, {"m": {"n": 2}})
    assert_fails(made, make_closure(8), {"n": 1}, {"m": {"n": 2}})
    assert_fails(made, make_closure(7), {"n": 1}, {"m": {"n": 3}})


def test_unknown_roots_are_reported():
    for source in (
        LocalSource("z"),
        ClosureSource(FunctionSource(), 0),
        ItemSource(NamespaceSource(), "g"),
        ItemSource(NamespaceSource("m"), "g"),
    ):
        with pytest.raises(UnguardableSourceError, match="TS-G002"):
            checker(Guard(source, K.NONE))


@pytest.mark.parametrize("name", ["type", "len", "id", "tuple", "map", "floor", "x_size0"])
def test_parameters_named_like_what_the_text_uses(name):
    source = LocalSource(name)
    made = checker(
        Guard(source, K.TENSOR, TensorSpec.of(torch.ones(4, 3), {0})),
        Guard(X, K.LENGTH, (list, 1)),
        params=(name, "x"),
    )
    assert_holds(made, torch.ones(5, 3), [1])
    assert_fails(made, torch.ones(5, 4), [1])
    assert_fails(made, torch.ones(5, 3), [1, 2])


# --- relations -----------------------------------------------------------------------------------


def test_same_object():
    made = checker(Guard(X, K.SAME_OBJECT, Y), params=("x", "y"))
    one = torch.ones(2)
    assert_holds(made, one, one)
    assert_fails(made, one, torch.ones(2))


@pytest.mark.parametrize("count", [2, 3, 6])
def test_not_same(count):
    names = [f"a{i}" for i in range(count)]
    first, *rest = map(LocalSource, names)
    made = checker(Guard(first, K.NOT_SAME, tuple(rest)), params=names)
    values = [torch.ones(1) for _ in names]
    assert_holds(made, *values)
    for i in range(count):
        for j in range(i):
            assert_fails(made, *[values[j] if k == i else v for k, v in enumerate(values)])


def test_shape_relations_share_what_the_tensor_guards_read():
    env = ShapeEnv()
    x, y = torch.ones(4, 3), torch.ones(8, 3)
    rows = env.create_symbol(4, TensorPropertySource(X, "size", 0))
    more = env.create_symbol(8, TensorPropertySource(Y, "size", 0))
    assert rows * 2 == more
    guards = [
        Guard(X, K.TENSOR, TensorSpec.of(x, {0})),
        Guard(Y, K.TENSOR, TensorSpec.of(y, {0})),
        *env.shape_guards(),
    ]
    made = checker(*guards, params=("x", "y"))
    assert_holds(made, x, y)
    assert_holds(made, torch.ones(5, 3), torch.ones(10, 3))
    assert_fails(made, torch.ones(5, 3), torch.ones(9, 3))
    assert_fails(made, torch.ones(1, 3), torch.ones(2, 3))
    assert ".size(" not in made.code.split("return False", 1)[1].replace("#", "\n#").split("#")[0]


def test_shape_relations_without_tensor_guards_read_the_sizes():
    env = ShapeEnv()
    n = env.create_symbol(6, LocalSource("y"), "unspecified")
    rows = env.create_symbol(3, TensorPropertySource(X, "size", 0))
    assert bool(rows < n)
    made = checker(*env.shape_guards(), params=("x", "y"))
    assert_holds(made, torch.ones(3), 6)
    assert_fails(made, torch.ones(6), 6)
    assert_fails(made, torch.ones(3), 6.5)


def test_relational_guards_run_last():
    made = checker(
        Guard(X, K.SAME_OBJECT, Y),
        Guard(X, K.TYPE, list),
        Guard(Y, K.TYPE, list),
        params=("x", "y"),
    )
    lines = made.code.splitlines()
    relation = next(i for i, line in enumerate(lines) if "x is not y" in line)
    assert all(i < relation for i, line in enumerate(lines) if "type(" in line)


# --- ambient state -------------------------------------------------------------------------------


def test_global_state():
    made = checker(Guard(GLOBAL_STATE, K.GLOBAL_STATE, GlobalState.capture()), params=())
    assert_holds(made)
    with torch.no_grad():
        assert_fails(made)
    assert_holds(made)


# --- structure -----------------------------------------------------------------------------------


def module_guards(module):
    root = LocalSource("self")
    guards = [Guard(root, K.TYPE, type(module))]
    for name, parameter in module.named_parameters():
        *path, last = name.split(".")
        source = root
        for part in path:
            source = ItemSource(AttrSource(source, "_modules"), part)
        source = ItemSource(AttrSource(source, "_parameters"), last)
        guards.append(Guard(source, K.TENSOR, TensorSpec.of(parameter)))
    return guards


def test_module_paths_are_fetched_once():
    module = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(5)])
    made = checker(*module_guards(module), params=("self",))
    assert_holds(made, module)
    fetches = [line for line in made.code.splitlines() if " = " in line]
    assert sum(line.endswith("['_modules']") for line in fetches) == 1, made.code
    assert sum(line.endswith("._parameters") for line in fetches) == 1, "equal layers share it"
    module[3].weight = torch.nn.Parameter(torch.ones(3, 2))
    assert_fails(made, module)


def test_in_place_changes_of_parameters_are_seen():
    module = torch.nn.Linear(2, 2)
    made = checker(*module_guards(module), params=("self",))
    module.requires_grad_(False)
    assert_fails(made, module)
    module.requires_grad_(True)
    assert_holds(made, module)
    module.weight.data = torch.ones(2, 3)
    assert_fails(made, module)
    module.weight.data = torch.ones(2, 2)
    module.double()
    assert_fails(made, module)


def test_text_is_readable_and_known_to_debuggers():
    made = checker(Guard(X, K.CONSTANT, 3, "an int argument", "app.py:7"))
    assert (
        "if type(x) is not int or x != 3: return False  # x: an int argument; app.py:7" in made.code
    )
    filename = made.check.__code__.co_filename
    assert "".join(linecache.getlines(filename)) == made.code
    linecache.checkcache()
    assert linecache.getline(filename, 1) == "def check(x):\n"


def test_frames_of_a_checker_show_their_line():
    lines = []

    class Looks:
        @property
        def value(self):
            lines.extend(f.line for f in traceback.extract_stack())

    checker(Guard(AttrSource(X, "value"), K.NONE)).check(Looks())
    assert any(line.startswith("if x.value is not None:") for line in lines)


def test_linecache_entries_go_with_the_checker():
    one = checker(Guard(X, K.CONSTANT, 3))
    two = checker(Guard(X, K.CONSTANT, 3))
    filename = one.check.__code__.co_filename
    assert filename == two.check.__code__.co_filename
    del one
    gc.collect()
    assert filename in linecache.cache
    del two
    gc.collect()
    assert filename not in linecache.cache


def test_comments_cannot_break_the_text():
    made = checker(Guard(ItemSource(X, "a\nb"), K.CONSTANT, "c\nreturn True", "two\nlines"))
    assert_holds(made, {"a\nb": "c\nreturn True"})
    assert_fails(made, {"a\nb": "c"})


def test_no_guards_hold():
    assert_holds(checker(), object())


def test_explain_wants_all_arguments():
    with pytest.raises(TypeError, match="expected 1 arguments, got 2"):
        checker().explain(1, 2)


def test_cost_grows_with_guards():
    small = checker(Guard(X, K.TYPE, list))
    large = checker(Guard(X, K.TENSOR, TensorSpec.of(TENSOR)), Guard(SHAPES, K.SHAPE, relation()))
    assert 0 < small.cost_ns < large.cost_ns


def relation():
    env = ShapeEnv()
    size = env.create_symbol(4, TensorPropertySource(X, "size", 0))
    assert size > 3
    return env.shape_guards()[-1].expected


def test_identity_of_an_argument_holds_no_reference_and_nothing_takes_its_place():
    box = Box()
    made = checker(Guard(X, K.ID, box), Guard(AttrSource(X, "part"), K.ID, None))
    box.part = None
    assert made.check(box)
    dead = weakref.ref(box)
    address = id(box)
    del box
    assert dead() is None
    assert_fails(made, None)
    others = [Box(part=None) for _ in range(50)]  # one of them is likely where the box was
    assert not any(made.check(other) for other in others), address in map(id, others)
    assert_fails(made, others[0])
    assert "Box" in str(made.explain(others[0])[0])


def test_identity_of_what_a_closure_holds_keeps_nothing_alive():
    function = make_closure(Box())
    (cell,) = function.__closure__
    here = ClosureSource(FunctionSource(), 0)
    made = checker(Guard(here, K.ID, cell.cell_contents), params=(), bind={"F": function})
    assert_holds(made)
    dead = weakref.ref(cell.cell_contents)
    cell.cell_contents = Box()
    assert dead() is None
    assert_fails(made)


def test_a_failure_is_shown_for_objects_that_cannot_be_printed():
    class Mute:
        def __repr__(self):
            raise ValueError

    mute = Mute()
    made = checker(Guard(X, K.ID, mute))
    assert "Mute object" in str(made.explain(Mute())[0])


# --- equal branches ------------------------------------------------------------------------------
class Block(torch.nn.Module):
    """A layer with an attribute."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.scale = 0.5


def block_guards(module):
    guards = module_guards(module)
    for name, child in module.named_modules():
        source = LocalSource("self")
        for part in filter(None, name.split(".")):
            source = ItemSource(AttrSource(source, "_modules"), part)
        guards.append(Guard(source, K.TYPE, type(child)))
        guards.append(Guard(AttrSource(source, "_forward_hooks"), K.EMPTY))
        guards.append(
            Guard(AttrSource(source, "__dict__"), K.DICT_CONTAINS, ("forward", False)),
        )
        if isinstance(child, Block):
            guards.append(Guard(AttrSource(source, "scale"), K.CONSTANT, child.scale))
    return guards


def blocks(count):
    return torch.nn.Sequential(*[Block() for _ in range(count)])


def test_equal_blocks_are_checked_by_one_function():
    few, many = blocks(3), blocks(30)
    texts = [checker(*block_guards(m), params=("self",)).code for m in (few, many)]
    assert texts[0].count("def check_Block(") == texts[1].count("def check_Block(") == 1
    assert len(texts[0].splitlines()) == len(texts[1].splitlines())


@pytest.mark.parametrize("place", [0, 7, 29])
@pytest.mark.parametrize(
    "change",
    [
        lambda block: setattr(block, "scale", 0.25),
        lambda block: delattr(block, "scale"),
        lambda block: setattr(block, "linear", torch.nn.Linear(2, 2, bias=False)),
        lambda block: setattr(block, "linear", torch.nn.Identity()),
        lambda block: delattr(block, "linear"),
        lambda block: setattr(block.linear, "weight", None),
        lambda block: setattr(block.linear.weight, "data", torch.ones(3, 2)),
        lambda block: block.linear.bias.requires_grad_(False),
        lambda block: block.linear.register_forward_hook(print),
        lambda block: setattr(block, "forward", print),
        lambda block: setattr(block, "__class__", torch.nn.Sequential),
        lambda block: block.to(torch.float64),
        lambda block: block.to("meta"),
        lambda block: block.__dict__.clear(),
    ],
)
def test_a_change_in_any_of_many_equal_blocks_is_seen(place, change):
    module = blocks(30)
    made = checker(*block_guards(module), params=("self",))
    assert_holds(made, module)
    change(module[place])
    assert_fails(made, module)


def test_blocks_that_differ_in_a_value_are_told_apart():
    module = blocks(6)
    module[2].scale = module[5].scale = 2.0
    made = checker(*block_guards(module), params=("self",))
    assert_holds(made, module)
    for number, value in ((2, 0.5), (1, 2.0)):
        kept, module[number].scale = module[number].scale, value
        assert_fails(made, module)
        module[number].scale = kept
    assert_holds(made, module)


def test_relations_reach_into_blocks_that_share_a_function():
    module = blocks(4)
    module[3].linear.weight = module[1].linear.weight
    root = LocalSource("self")
    linears = [
        ItemSource(
            AttrSource(ItemSource(AttrSource(root, "_modules"), str(n)), "_modules"), "linear"
        )
        for n in range(4)
    ]
    weights = [ItemSource(AttrSource(linear, "_parameters"), "weight") for linear in linears]
    made = checker(
        *block_guards(module),
        Guard(weights[3], K.SAME_OBJECT, weights[1]),
        Guard(weights[0], K.NOT_SAME, tuple(weights[1:3])),
        params=("self",),
    )
    assert_holds(made, module)
    kept, module[3].linear.weight = module[3].linear.weight, torch.nn.Parameter(torch.ones(2, 2))
    assert_fails(made, module)
    module[3].linear.weight = kept
    assert_holds(made, module)
    module[2].linear.weight = module[0].linear.weight
    assert_fails(made, module)


@pytest.mark.parametrize("name", ["scale", "__getattribute__", "_forward_hooks"])
def test_a_class_that_gets_an_attribute_that_instances_have_is_seen(name):
    class Own(Block):
        pass

    module = torch.nn.Sequential(Own(), Own())
    made = checker(*block_guards(module), params=("self",))
    assert_holds(made, module)
    value = (lambda self, n: object.__getattribute__(self, n)) if "get" in name else property(print)
    setattr(Own, name, value)
    assert made.check(module) is False
    delattr(Own, name)
    assert_holds(made, module)


def test_a_bound_object_named_like_the_checker():
    def check():
        pass

    made = GuardSet([Guard(LocalSource("f"), K.ID, check)]).compile(("f",))
    assert made.check(check)
    assert not made.check(len)


class Base:
    a = 1


class Derived(Base):
    pass


@pytest.mark.parametrize("count", [2, 3, 30])
def test_absent_keys_are_asked_for_together(count):
    table = ClassDictSource(Derived)
    names = ["b", *(f"n{i}" for i in range(count - 1))]
    guards = [Guard(table, K.DICT_CONTAINS, (name, False)) for name in names]
    guards.append(Guard(table, K.DICT_CONTAINS, ("__module__", True)))
    made = GuardSet(guards).compile(())
    assert made.code.count("return False") == 2  # one condition, and the handler
    assert made.check()
    Derived.b = 1
    assert not made.check()
    assert [f.guard.expected for f in made.explain()] == [("b", False)]
    del Derived.b
    assert made.check()


def test_pinned_objects_are_fetched_from_the_guard_itself():
    made = GuardSet(
        [
            Guard(ItemSource(ClassDictSource(Base), "a"), K.CONSTANT, 1),
            Guard(AttrSource(PinnedSource(Derived), "__mro__"), K.ID, Derived.__mro__),
            Guard(CallSource(PinnedSource(issubclass), (Derived, Base)), K.CONSTANT, True),
            Guard(ResultSource(LocalSource("x"), id), K.CONSTANT, id(Base)),
        ]
    ).compile(("x",))
    assert made.check(Base)
    assert not made.check(Derived)
    Base.a = 2
    assert not made.check(Base)
    assert [f.guard.source.expr for f in made.explain(Base)] == [f"vars({__name__}.Base)['a']"]
    Base.a = 1


class Computes:
    """Answers for every attribute, and says so."""

    asked = []  # noqa: RUF012 - shared on purpose

    def __getattr__(self, name):
        self.asked.append(name)
        return 6


class Numbered:
    pass


Numbered.__name__ = "6"


@pytest.mark.parametrize("obj", [Computes(), Numbered, Numbered(), eval("lambda: 0")])
def test_objects_are_named_without_running_code_of_the_users(obj):
    Computes.asked.clear()  # pytest has asked for a name
    made = checker(Guard(X, K.ID, obj), Guard(PinnedSource(obj), K.TYPE, type(obj)))
    assert made.check(obj)
    assert_fails(made, object())
    assert Computes.asked == []
