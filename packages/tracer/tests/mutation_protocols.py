"""Still more kinds of facts for the mutation fuzzer: special methods that come and go, stores to
modules, tensors of other classes, text, functions and what wraps them."""

from __future__ import annotations

from mutation_facts import NETS, added, fact, replaced, stored

SUB = (
    "class T$(torch.Tensor): pass\nt$ = torch.ones(1).as_subclass(T$)\n"
    "class Q$(nn.Parameter): pass\nq$ = Q$(torch.ones(1))\n"
)
PROTOCOLS = [
    fact(
        "class I$: pass\nclass A$:\n    def __iter__(s): return i$\ni$ = I$()\na$ = A$()\n",
        "tried(lambda: next(iter(a$))) + tried(lambda: next(i$)) + tried(lambda: sum(a$))",
        *added("I$.__next__", "lambda s: [][0]"),
        *added("A$.__next__", "lambda s: 4"),
        ("A$.__iter__ = None", "A$.__iter__ = lambda s: i$"),
    ),
    fact(
        "class E$(enum.Enum):\n    A = 1\n    B = 2\n",
        "tried(lambda: [5, 6, 7][E$.A]) + tried(lambda: int(E$.B)) + tried(lambda: abs(E$.A)) + "
        "tried(lambda: list(E$.A)) * 0 + tried(lambda: 3 in E$.A)",
        *added("E$.__index__", "lambda s: s.value"),
        *added("E$.__int__", "lambda s: 40"),
        *added("E$.__abs__", "lambda s: 50"),
        *added("E$.__contains__", "lambda s, o: True"),
        *added("E$.__iter__", "lambda s: iter([3])"),
    ),
    fact(
        "class A$: pass\na$ = A$()\n",
        "tried(lambda: sum(reversed(a$))) + tried(lambda: a$[0]) + tried(lambda: len(a$)) + "
        "tried(lambda: sum(a$)) + tried(lambda: a$ @ 2) + tried(lambda: ~a$) + "
        "tried(lambda: a$ < 3) + tried(lambda: hash(a$) * 0) + operator.length_hint(a$, 5)",
        (
            "A$.__len__ = lambda s: 2; A$.__getitem__ = lambda s, i: [7, 8][i]",
            "del A$.__len__, A$.__getitem__",
        ),
        *added("A$.__reversed__", "lambda s: [5]"),
        *added("A$.__matmul__", "lambda s, o: 5"),
        *added("A$.__invert__", "lambda s: 5"),
        *added("A$.__lt__", "lambda s, o: 5", "None"),
        *added("A$.__hash__", "None", "lambda s: 'a'"),
        *added("A$.__length_hint__", "lambda s: 50"),
        *added("A$.__len__", "lambda s: -1", "lambda s: 'a'"),
    ),
    fact(
        "class X$: k = 1\nclass Y$: k = 2\nclass Z$(X$): pass\nclass W$(Z$): pass\nw$ = W$()\n",
        "len(W$.mro()) + (Y$ in W$.mro()) + type.__subclasscheck__(Y$, W$) * 4 + "
        "object.__getattribute__(w$, 'k') + super(Z$, w$).k + getattr(w$, 'k')",
        *stored("Z$.__bases__", "(X$,)", "(Y$,)", "(X$, Y$)", "(Y$, X$)"),
        *stored("W$.__bases__", "(Z$,)", "(Z$, Y$)"),
        *added("Z$.k", "8"),
        *added("W$.k", "8"),
    ),
    fact(
        NETS + "def put$(m, v):\n    m.tag = v\n    return m.tag\n",
        "put$(net$, x).sum() + len(net$._buffers) + ('tag' in vars(net$)) * 4",
        (
            "vars(net$).pop('tag', None); net$.register_buffer('tag', torch.ones(1))",
            "net$._buffers.pop('tag', None)",
        ),
        (
            "vars(net$).pop('tag', None); net$.register_parameter('tag', None)",
            "net$._parameters.pop('tag', None)",
        ),
        (
            "vars(net$).pop('tag', None); net$.add_module('tag', nn.ReLU())",
            "net$._modules.pop('tag', None)",
        ),
        *added("Net$.tag", "property(lambda s: s.scale, lambda s, v: None)"),
        *added("Net$.__setattr__", "lambda s, n, v: object.__setattr__(s, n, v * 3)"),
    ),
    fact(
        NETS + "def drop$(m, n='tag'):\n    try:\n        del m.tag\n"
        "        found = n in vars(m)\n        setattr(m, n, 3)\n        return 3 + found\n"
        "    except AttributeError: return 5\n",
        "drop$(net$) + ('tag' in vars(net$)) * 4",
        ("net$.tag = 3", "vars(net$).pop('tag', None)"),
        *added("Net$.tag", "7", "property(lambda s: 1, lambda s, v: None, lambda s: None)"),
    ),
    fact(
        "class T$: pass\nt$ = T$()\n",
        "tried(lambda: torch.add(t$, 1)) + tried(lambda: torch.sin(t$)) + tried(lambda: x + t$)",
        *added("T$.__torch_function__", "classmethod(lambda c, f, t, a=(), k=None: 7)"),
        *added("T$.__radd__", "lambda s, o: 9"),
        *added("T$.__array__", "lambda s, *a: 9"),
    ),
    fact(
        SUB,
        "(t$ + 1).sum() + t$.sum() + getattr(t$, 'foo', 3) + isinstance(t$ * 2, T$) * 5 + q$.sum() "
        "+ getattr(q$, 'foo', 3) + isinstance(q$ * 2, Q$) * 5",
        *added("T$.foo", "8", "property(lambda s: 9)"),
        *added("t$.foo", "8"),
        *added("q$.foo", "8"),
        *added("Q$.foo", "8"),
        *added("T$.__getattr__", "lambda s, n: 19"),
        *added("T$.sum", "lambda s: torch.zeros(1)"),
        *added("t$.sum", "lambda: torch.zeros(1)"),
        *added("T$.__add__", "lambda s, o: torch.zeros(1)"),
        *added(
            "T$.__torch_function__", "classmethod(lambda c, f, t, a=(), k=None: torch.zeros(1))"
        ),
        ("t$.__class__ = torch.Tensor", "t$ = torch.ones(1).as_subclass(T$)"),
        *added("torch.Tensor.foo", "18"),
    ),
    fact(
        "class G$(nn.Module):\n    def __getattr__(s, n):\n        if n == 'v': return 4\n"
        "        return super().__getattr__(n)\n    def forward(s, x): return x * s.v + s.lin.v2\n"
        "class L$(nn.Module): v2 = 3\ng$ = G$()\ng$.lin = L$()\n",
        "g$(x)",
        *added("g$.v", "5"),
        *added("G$.v", "6"),
        ("g$._buffers['v'] = torch.ones(1) * 7", "del g$._buffers['v']"),
        *added("g$.lin.v2", "9"),
        *added(
            "L$.__getattribute__", "lambda s, n: 30 if n == 'v2' else object.__getattribute__(s, n)"
        ),
        *replaced("G$.__getattr__", "lambda s, n: 8 if n == 'v' else nn.Module.__getattr__(s, n)"),
        (
            "h$ = nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 3)",
            "h$.remove()",
        ),
        ("h$ = g$.register_forward_hook(lambda m, a, o: o * 3, always_call=True)", "h$.remove()"),
        (
            "h$ = g$.register_forward_pre_hook(lambda m, a, k: ((a[0] * 2,), k), with_kwargs=True)",
            "h$.remove()",
        ),
    ),
    fact(
        "class R$:\n    def __set_name__(s, o, n): o.named = 3\nr$ = R$()\nclass A$: z = 1\n"
        "def mk$():\n    class B(A$):\n        d = r$\n    return getattr(B, 'named', 1) + B.z\n",
        "mk$()",
        ("old$ = R$.__set_name__; del R$.__set_name__", "R$.__set_name__ = old$"),
        *added("A$.__init_subclass__", "classmethod(lambda c, **k: setattr(c, 'z', 30))"),
        *added("R$.__get__", "lambda s, o, c: 5"),
        *stored("A$.z", "1", "4"),
    ),
    fact(
        "class V$:\n    def __init__(s, n): s.n = n\n    def __repr__(s): return 'a' * s.n\n"
        "v$ = V$(3)\n",
        "len(str(v$)) + len(f'{v$}') + len(repr([v$])) + len('%s' % v$) + len('{}'.format(v$)) + "
        "len(f'{v$!r:>9}')",
        *added("V$.__str__", "lambda s: 'bb'"),
        *added("V$.__format__", "lambda s, f: 'cccc'"),
        *replaced("V$.__repr__", "lambda s: 'ddddd'"),
        *stored("v$.n", "3", "5"),
        *added("v$.__repr__", "lambda: 'x'"),
    ),
    fact(
        "import numpy as np$\narr$ = np$.ones(2)\n",
        "arr$.sum() + arr$[0] + arr$.dtype.itemsize + arr$.size + torch.from_numpy(arr$).sum()",
        ("arr$[0] = 5", "arr$[0] = 1"),
        *stored("arr$", "np$.ones(2)", "np$.ones(3)", "np$.ones(2, dtype=np$.float32)"),
        *stored("arr$", "np$.ones(2)", "np$.ones((2, 2))[:, 0]"),
        *replaced("np$.ones", "lambda n: None"),
    ),
    fact(
        "def acc$(v, l=[]):\n    return sum(l) + v\ndef kw$(*, d={'a': 1}): return d['a']\n",
        "acc$(1) + kw$()",
        ("acc$.__defaults__[0].append(4)", "acc$.__defaults__[0].clear()"),
        ("kw$.__kwdefaults__['d']['a'] = 5", "kw$.__kwdefaults__['d']['a'] = 1"),
        *stored("acc$.__defaults__", "([],)", "([7],)"),
    ),
    fact(
        "def fact$(n): return 1 if n < 2 else n * fact$(n - 1)\nfirst$ = fact$\n",
        "first$(4)",
        *stored("fact$", "first$", "lambda n: 50"),
        (
            "first$.__code__ = (lambda n: 3).__code__",
            "first$.__code__ = (lambda n: 1 if n < 2 else n * fact$(n - 1)).__code__",
        ),
    ),
    fact(
        "class P$(types.ModuleType):\n    @property\n    def v(s): return 30\n"
        "m$ = types.ModuleType('m$')\nm$.v = 3\n",
        "m$.v + getattr(m$, 'w', 1) + hasattr(m$, 'u')",
        ("m$.__class__ = P$", "m$.__class__ = types.ModuleType"),
        *stored("m$.v", "3", "4"),
        *added("m$.u", "3"),
        *added("m$.__getattr__", "lambda n: 5"),
    ),
    fact(
        "class A$:\n    def __getattr__(s, n): return len(n)\na$ = A$()\n",
        "a$.abc + a$.de",
        *added("a$.abc", "9"),
        *added("A$.abc", "9"),
        *replaced("A$.__getattr__", "lambda s, n: 8"),
        (
            "old$ = A$.__getattr__; del A$.__getattr__; A$.abc = 1; A$.de = 2",
            "A$.__getattr__ = old$; del A$.abc, A$.de",
        ),
    ),
    fact(
        "class W$:\n    def __init__(s, o): s.o = o\n    def __getattr__(s, n): return "
        "getattr(s.o, n)\nclass A$: k = 3\na$ = A$()\nw$ = W$(a$)\n",
        "w$.k + hasattr(w$, 'z')",
        *stored("A$.k", "3", "4"),
        *added("a$.z", "5"),
        *added("w$.z", "5"),
        *stored("w$.o", "a$", "types.SimpleNamespace(k=8)"),
        *added("W$.k", "6"),
    ),
    fact(
        "l$ = [1, 2]\nt$ = (l$, l$)\nd$ = {'a': l$}\n",
        "sum(t$[0]) + sum(t$[1]) + (t$[0] is d$['a']) + (d$['a'] is l$) * 2 + "
        "len({id(i) for i in t$})",
        ("l$.append(3)", "l$.pop()"),
        *stored("d$['a']", "l$", "[1, 2]"),
        *stored("t$", "(l$, l$)", "(l$, list(l$))"),
        *stored("l$", "t$[0]", "[1, 2]"),
    ),
    fact(
        "def deco$(f):\n    @functools.wraps(f)\n    def w(*a, **k): return f(*a, **k) + c$\n"
        "    return w\n@deco$\ndef h$(v=1): return v\nc$ = 3\n",
        "h$() + h$.__wrapped__() + len(h$.__name__)",
        *stored("c$", "3", "4"),
        *stored("h$.__wrapped__.__defaults__", "(1,)", "(5,)"),
        *stored("h$.__wrapped__", "h$.__wrapped__", "lambda: 9"),
        *stored("h$.__closure__[0].cell_contents", "h$.__wrapped__", "lambda: 70"),
    ),
    fact(
        "rng$ = random.Random(3)\n",
        "isinstance(rng$, random.Random) + len(str(rng$.getstate()[0])) + callable(rng$.random)",
        ("rng$.seed(4)", "rng$.seed(3)"),
        *added("rng$.random", "7"),
        *stored("rng$", "random.Random(3)", "None"),
    ),
    fact(
        "A$ = typing.NewType('A$', int)\nB$ = typing.Optional[int]\nC$ = int | None\n",
        "A$(3) + len(typing.get_args(B$)) + isinstance(3, C$) + isinstance(None, C$) * 2",
        *stored("C$", "int | None", "int | str", "str"),
        *stored("B$", "typing.Optional[int]", "typing.Union[int, str, None]"),
        *replaced("A$", "lambda v: v + 5"),
    ),
    fact(
        "class A$: pass\na$ = A$()\n",
        "len([n for n in dir(a$) if n[0] != '_']) + len([n for n in dir(A$) if n[0] != '_'])",
        *added("a$.z", "5"),
        *added("A$.y", "5"),
        *added("A$.__dir__", "lambda s: ['a', 'b', 'c']"),
    ),
    fact(
        "class S$:\n    def __init__(s): s.calls = 0\n    def __call__(s, v):\n"
        "        s.calls += 1\n"
        "        return v + s.calls\ns$ = S$()\n",
        "s$(1) * 0 + (s$.calls > 0) + callable(s$)",
        *stored("s$", "S$()", "lambda v: v"),
        *added("S$.calls", "property(lambda s: 3, lambda s, v: None)"),
        *added("s$.extra", "3"),
    ),
]
