"""Kinds of facts for the mutation fuzzer: how they are written down, and those about enums,
dataclasses, signatures, special methods, hooks and named tuples."""

from __future__ import annotations

from typing import NamedTuple


class Fact(NamedTuple):
    """A kind of fact, as text in which ``$`` is a number of its own.

    ``setup`` defines it, ``read`` is an expression for a number, ``changes`` are pairs of
    statements: do and undo.
    """

    setup: str
    read: str
    changes: tuple[tuple[str, str], ...]


def fact(setup: str, read: str, *changes: tuple[str, str]) -> Fact:
    return Fact(setup, read, changes)


def stored(place: str, old: str, *new: str) -> tuple[tuple[str, str], ...]:
    """Assignments to a place that holds something."""
    return tuple((f"{place} = {value}", f"{place} = {old}") for value in new)


def added(place: str, *new: str) -> tuple[tuple[str, str], ...]:
    """Assignments to a place that holds nothing."""
    return tuple((f"{place} = {value}", f"del {place}") for value in new)


def replaced(place: str, *new: str) -> tuple[tuple[str, str], ...]:
    """Assignments to a place whose own content is kept aside."""
    return tuple((f"kept$ = {place}; {place} = {value}", f"{place} = kept$") for value in new)


NETS = """
class Net$(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(1, 1, bias=False)
        self.act = nn.ReLU()
        self.register_buffer("buf", torch.ones(1))
        self.scale = 2.0
        nn.init.ones_(self.lin.weight)
    def forward(self, x): return self.act(self.lin(x)) * self.scale + self.buf
net$ = Net$()
"""

MORE = [
    fact(
        "class Color$(enum.Enum):\n    RED = 1\n    BLUE = 2\nclass I$(enum.IntEnum):\n"
        "    A = 1\n    B = 2\nclass G$(enum.Flag):\n    X = 1\n    Y = 2",
        "len(Color$) + len(list(Color$)) + Color$['RED'].value + Color$(1).value + "
        "('BLUE' in Color$.__members__)",
        ("Color$._member_map_['GREEN'] = Color$.BLUE", "del Color$._member_map_['GREEN']"),
        ("Color$._member_names_.append('BLUE')", "Color$._member_names_.pop()"),
        *stored("Color$.RED._value_", "1", "70"),
    ),
    fact(
        "class Color$(enum.Enum):\n    RED = 1\n    BLUE = 2",
        "Color$.RED.value + len(Color$.RED.name)",
        *stored("Color$.RED._name_", "'RED'", "'OTHER'"),
        *stored("Color$.RED._value_", "1", "70"),
    ),
    fact(
        "class Color$(enum.Enum):\n    RED = 1\n    def m(self): return 1",
        "Color$.RED.m() + len(str(Color$.RED)) + (Color$.RED == 1)",
        *stored("Color$.m", "lambda s: 1", "lambda s: 8"),
        *added("Color$.__str__", "lambda s: 'x'"),
    ),
    fact(
        "class I$(enum.IntEnum):\n    A = 1\n    B = 2\ni$ = I$.A",
        "i$ + 1 + I$.B",
        *stored("i$", "I$.A", "I$.B"),
    ),
    fact(
        "class G$(enum.Flag):\n    X = 1\n    Y = 2\ng$ = G$.X",
        "(g$ | G$.Y).value + (G$.X in g$)",
        *stored("g$", "G$.X", "G$.Y"),
    ),
    fact(
        "def h$(a, b=1, *, c=2): return a",
        "len(inspect.signature(h$).parameters) + "
        "getattr(inspect.signature(h$).parameters.get('b'), 'default', 9)",
        *stored("h$.__defaults__", "(1,)", "(5,)"),
        (
            "h$.__code__ = (lambda a, b=1, *, c=2, d=3: a).__code__",
            "h$.__code__ = (lambda a, b=1, *, c=2: a).__code__",
        ),
        *added("h$.__signature__", "inspect.Signature()"),
        *added("h$.__wrapped__", "lambda x: 1"),
    ),
    fact(
        "def h$(a: int = 1): return a",
        "len(h$.__annotations__) + (h$.__annotations__.get('a') is int) + "
        "len(inspect.signature(h$).parameters['a'].annotation.__name__)",
        ("h$.__annotations__['b'] = 1", "h$.__annotations__.pop('b')"),
        ("h$.__annotations__['a'] = float", "h$.__annotations__['a'] = int"),
    ),
    fact(
        "@dataclasses.dataclass\nclass P$:\n    u: int = 1\n    v: int = 2\np$ = P$()",
        "len(dataclasses.fields(p$)) + len(dataclasses.fields(P$)) + sum(getattr(p$, "
        "f.name) for f in dataclasses.fields(p$))",
        *stored("p$.u", "1", "9"),
        (
            "P$.__dataclass_fields__['w'] = P$.__dataclass_fields__['u']",
            "P$.__dataclass_fields__.pop('w')",
        ),
        ("saved$ = P$.__dataclass_fields__.pop('v')", "P$.__dataclass_fields__['v'] = saved$"),
    ),
    fact(
        "@dataclasses.dataclass\nclass P$:\n    u: int = 1\n    v: int = 2\np$ = P$()",
        "sum(dataclasses.asdict(p$).values()) + dataclasses.replace(p$, u=4).v + "
        "dataclasses.is_dataclass(p$) + len(dataclasses.astuple(p$))",
        *stored("p$.v", "2", "9"),
        ("saved$ = P$.__dataclass_fields__.pop('v')", "P$.__dataclass_fields__['v'] = saved$"),
        *stored("P$.__init__", "P$.__init__", "lambda s, u, v: setattr(s, 'v', 77)"),
    ),
    fact(
        "@dataclasses.dataclass\nclass P$:\n    u: int = 1",
        "(P$() == P$(u=1)) + len(repr(P$())) + P$().u",
        *added("P$.__hash__", "lambda s: 1"),
        *stored("P$.__init__.__defaults__", "(1,)", "(6,)"),
        *stored("P$.__eq__", "P$.__eq__", "lambda s, o: False"),
        *stored("P$.__repr__", "P$.__repr__", "lambda s: 'abcdefgh'"),
    ),
    fact(
        "class C$:\n    u: int\n    v: float",
        "len(C$.__annotations__) + len(typing.get_type_hints(C$)) + "
        "(C$.__annotations__['u'] is int)",
        ("C$.__annotations__['w'] = int", "C$.__annotations__.pop('w')"),
        ("C$.__annotations__['u'] = str", "C$.__annotations__['u'] = int"),
    ),
    fact(
        "class C$:\n    __match_args__ = ('u', 'v')\n    u = 1\n    v = 2\nc$ = C$()\n"
        "def match$():\n    match c$:\n        case C$(u, 2): return u\n"
        "        case C$(u=1): return 5\n        case _: return 3\n",
        "match$()",
        *stored("C$.__match_args__", "('u', 'v')", "('v', 'u')", "()"),
        *added("c$.u", "7"),
        *added("c$.v", "7"),
    ),
    fact(
        "class C$:\n    def __enter__(s): return 1\n    def __exit__(s, "
        "*a): return True\nc$ = C$()\ndef w$():\n    with c$ as k:\n        k = k + "
        "[1, 2][k]\n        k = k + [][0]\n    return k\n",
        "w$()",
        *stored("C$.__enter__", "lambda s: 1", "lambda s: 0"),
        *stored("C$.__exit__", "lambda s, *a: True", "lambda s, *a: False"),
    ),
    fact(
        "class C$:\n    def __iter__(s): return iter([1, 2])\n    def __contains__(s, "
        "x): return x == 2\n    def __getitem__(s, i): return i + 1\n"
        "    def __call__(s): return 3\nc$ = C$()",
        "sum(c$) + (2 in c$) + c$[4] + c$()",
        *stored("C$.__iter__", "lambda s: iter([1, 2])", "lambda s: iter([5])"),
        *stored("C$.__contains__", "lambda s, x: x == 2", "lambda s, x: False", "None"),
        *stored("C$.__getitem__", "lambda s, i: i + 1", "lambda s, i: 9"),
        *stored("C$.__call__", "lambda s: 3", "lambda s: 8"),
        *added("C$.__class_getitem__", "1"),
    ),
    fact(
        "class C$:\n    def __hash__(s): return 1\n    def __eq__(s, o): return True\n"
        "    def __index__(s): return 1\n    def __int__(s): return 2\n"
        "    def __float__(s): return 3.0\n    def __lt__(s, o): return True\n"
        "c$ = C$()\nk$ = {C$(): 4}",
        "k$.get(c$, 6) + [7, 8][c$] + int(c$) + float(c$) + len(sorted([c$, c$])) + (c$ < c$)",
        *stored("C$.__index__", "lambda s: 1", "lambda s: 0"),
        *stored("C$.__int__", "lambda s: 2", "lambda s: 20"),
        *stored("C$.__float__", "lambda s: 3.0", "lambda s: 30.0"),
        *stored("C$.__lt__", "lambda s, o: True", "lambda s, o: False"),
        *stored("C$.__eq__", "lambda s, o: True", "lambda s, o: False"),
    ),
    fact(
        "class C$:\n    def __str__(s): return 'ab'\n"
        "    def __repr__(s): return 'abc'\n    def __format__(s, f): return 'abcd'\n"
        "c$ = C$()",
        "len(str(c$)) + len(repr(c$)) + len(f'{c$}') + len(f'{c$!r:>9}')",
        *stored("C$.__str__", "lambda s: 'ab'", "lambda s: ''"),
        *stored("C$.__repr__", "lambda s: 'abc'", "lambda s: 'abcdefg'"),
        *stored("C$.__format__", "lambda s, f: 'abcd'", "lambda s, f: ''"),
    ),
    fact(
        NETS,
        "net$(x)",
        ("hook$ = net$.register_forward_pre_hook(lambda m, a: (a[0] * 3,))", "hook$.remove()"),
        (
            "hook$ = net$.register_forward_hook(lambda m, a, k, o: o * 3, with_kwargs=True)",
            "hook$.remove()",
        ),
        (
            "hook$ = net$.register_forward_hook(lambda m, a, o: o * 3, always_call=True)",
            "hook$.remove()",
        ),
        ("hook$ = net$.act.register_full_backward_hook(lambda m, a, o: None)", "hook$.remove()"),
        ("hook$ = net$.lin.register_full_backward_pre_hook(lambda m, a: None)", "hook$.remove()"),
        (
            "hook$ = nn.modules.module.register_module_forward_hook(lambda m, a, o: o + 1)",
            "hook$.remove()",
        ),
        (
            "hook$ = nn.modules.module.register_module_full_backward_hook(lambda m, a, o: None)",
            "hook$.remove()",
        ),
        ("net$._forward_hooks[99] = lambda m, a, o: o * 7", "del net$._forward_hooks[99]"),
        (
            "net$.lin._forward_pre_hooks[99] = lambda m, a: (a[0] * 7,)",
            "del net$.lin._forward_pre_hooks[99]",
        ),
        (
            "hook$ = net$.lin.register_forward_hook(lambda m, a, o: o * 3); "
            "net$.lin._forward_hooks[hook$.id] = lambda m, a, o: o * 11",
            "hook$.remove()",
        ),
        *added("Net$.__call__", "lambda s, x: x * 46"),
        *added("Net$._call_impl", "lambda s, x: x * 4"),
        *added("Net$.__getattr__", "lambda s, n: (lambda x: x * 2)"),
        ("net$.add_module('act', nn.Sigmoid())", "net$.add_module('act', nn.ReLU())"),
        ("del net$.act", "net$.act = nn.ReLU()"),
    ),
    fact(
        NETS + "hooked$ = []\nnet$.lin.register_forward_hook(lambda m, a, o: o + "
        "len(hooked$))\nfirst$ = net$.lin._forward_hooks\n",
        "net$(x)",
        ("hooked$.append(1)", "hooked$.pop()"),
        ("net$.lin._forward_hooks = collections.OrderedDict()", "net$.lin._forward_hooks = first$"),
        ("first$[77] = lambda m, a, o: o * 5", "del first$[77]"),
        (
            "first$[78] = lambda m, a, o: o * 5; first$.move_to_end(78, last=False)",
            "del first$[78]",
        ),
    ),
    fact(
        NETS,
        "sum(p.numel() for p in net$.parameters()) + len(list(net$.named_buffers())) + "
        "len(net$._modules) + len(list(net$.modules())) + net$.lin.in_features + "
        "len(net$.extra_repr())",
        ("net$.register_buffer('b2', torch.ones(2))", "del net$.b2"),
        ("net$.register_buffer('b3', torch.ones(2), persistent=False)", "del net$.b3"),
        ("net$.register_parameter('p2', nn.Parameter(torch.ones(3)))", "del net$.p2"),
        ("net$.l2 = nn.Linear(1, 2)", "del net$.l2"),
        ("net$._buffers['b4'] = None", "del net$._buffers['b4']"),
        *stored("net$.lin.in_features", "1", "8"),
        *added("Net$.extra_repr", "lambda s: 'abc'"),
    ),
    fact(
        "nt$ = collections.namedtuple('nt$', 'a b')\nn$ = nt$(1, 2)",
        "n$.a + len(n$._fields) + n$._replace(a=3).a + nt$(1, b=5).b",
        *stored("nt$.a", "property(lambda s: s[0])", "property(lambda s: 40)"),
        *stored("nt$._fields", "('a', 'b')", "('a',)"),
        *stored("n$", "nt$(1, 2)", "nt$(7, 2)"),
        *stored("nt$.__new__.__defaults__", "None", "(8,)"),
    ),
    fact(
        "class C$:\n    @functools.cached_property\n    def k(self): return 1\nc$ = C$()\nc$.k",
        "c$.k",
        *stored("vars(c$)['k']", "1", "6"),
        ("del c$.k; C$.k.func = lambda s: 12", "C$.k.func = lambda s: 1; vars(c$)['k'] = 1"),
    ),
    fact(
        "@functools.singledispatch\ndef sd$(x): return 1\n@functools.lru_cache\n"
        "def lc$(n=2): return n + len(real_argv)\n",
        "sd$(2) + lc$()",
        ("sd$.register(int, lambda x: 5)", ""),
        ("lc$.cache_clear()", ""),
    ),
    fact(
        "def deco$(f):\n    @functools.wraps(f)\n    def w(*a): return f(*a) + 1\n"
        "    return w\n@deco$\ndef df$(): return 1\n",
        "df$() + len(df$.__name__) + df$.__wrapped__()",
        (
            "df$.__wrapped__.__code__ = (lambda: 9).__code__",
            "df$.__wrapped__.__code__ = (lambda: 1).__code__",
        ),
        *stored("df$.__wrapped__", "df$.__closure__[0].cell_contents", "lambda: 30"),
        *stored("df$.__closure__[0].cell_contents", "df$.__wrapped__", "lambda: 3"),
    ),
    fact(
        "class X$(Exception): pass\nclass Y$(X$): pass\nk$ = X$\ndef tr$():\n    try:\n"
        "        raise Y$(1)\n    except k$ as e: return len(e.args)\n"
        "    except Exception as e: return 5\n",
        "tr$()",
        *stored("k$", "X$", "Y$", "ValueError", "(X$, KeyError)"),
        *added("Y$.__init__", "lambda s, *a: setattr(s, 'args', (1, 2))"),
    ),
    fact(
        "it$ = itertools.count\nop$ = operator.add\n",
        "next(it$(3)) + op$(1, 2) + sum(map(op$, [1], [2]))",
        *stored("it$", "itertools.count", "lambda n: iter([50])"),
        *stored("op$", "operator.add", "operator.mul"),
    ),
    fact(
        "",
        "operator.sub(4, 2) + next(itertools.count(2)) + len(collections.deque([1])) + "
        "functools.reduce(lambda a, b: a + b, [1, 2])",
        *stored("operator.sub", "real_sub", "lambda a, b: 60"),
        *stored("collections.deque", "real_deque", "list", "lambda x: 'abcd'"),
        *stored("functools.reduce", "real_reduce", "lambda f, x: 70"),
    ),
    fact(
        "class T$(torch.Tensor):\n    pass\nt$ = torch.ones(1).as_subclass(T$)",
        "t$ + 1",
        *added(
            "T$.__torch_function__",
            "classmethod(lambda c, f, t, a=(), k=None: torch.full((1,), 40.0))",
        ),
        *added("T$.__add__", "lambda s, o: torch.full((1,), 41.0)"),
    ),
    fact(
        "class H$:\n    def __torch_function__(self, f, t, a=(), "
        "k=None): return torch.full((1,), 5.0)\nh$ = H$()",
        "torch.add(x, h$)",
        *stored(
            "H$.__torch_function__",
            "H$.__torch_function__",
            "lambda s, f, t, a=(), k=None: torch.full((1,), 6.0)",
        ),
    ),
    fact(
        "pk$ = types.ModuleType('pk$')\npk$.sub = types.ModuleType('pk$.sub')\n"
        "pk$.sub.v = 3\nsys.modules['pk$'] = pk$; sys.modules['pk$.sub'] = pk$.sub\n"
        "def im$():\n    from pk$.sub import v\n    import pk$.sub as s\n"
        "    return v + s.v",
        "im$()",
        *stored("pk$.sub.v", "3", "5"),
        *stored("pk$.sub", "sys.modules['pk$.sub']", "types.SimpleNamespace(v=8)"),
    ),
    fact(
        "",
        "x.add(1).neg()",
        *added("torch.Tensor.add", "lambda s, o: s * 9"),
        *added("torch.Tensor.neg", "lambda s: s * 30"),
    ),
    fact(
        "",
        "F.relu(x) + F.dropout(x, 0.0, training=False)",
        *stored("F.relu", "real_frelu", "lambda x: x * 9"),
        *stored("torch.relu", "real_relu", "lambda x: x * 50"),
    ),
    fact(
        "",
        "torch.tensor(1).element_size() + torch.zeros(1).element_size()",
        ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)"),
    ),
]
