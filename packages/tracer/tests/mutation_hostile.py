"""More kinds of facts for the mutation fuzzer, thought out against the tracer: what hides what,
special methods of keys and of metaclasses, hooks, weak references, flags of torch."""

from __future__ import annotations

from mutation_facts import NETS, added, fact, replaced, stored

KEYS = (
    "class K$:\n    n = 1\nk$, k2$ = K$(), K$()\nd$ = {k$: 4, k2$: 5}\ns$ = {k$}\n"
    "fs$ = frozenset({k$})\n"
)
KEY_CHANGES = (
    *added("K$.__hash__", "lambda s: 1", "None"),
    *added("K$.__eq__", "lambda s, o: True"),
    ("K$.__eq__ = lambda s, o: True; K$.__hash__ = lambda s: 1", "del K$.__eq__, K$.__hash__"),
    ("d$.pop(k$)", "d$[k$] = 4"),
)
META = (
    "class M$(type): pass\nclass B$(metaclass=M$):\n    k = 3\n    def m(s): return 1\n"
    "class A$(B$): pass\na$ = A$()\n"
)
OBJ = (
    "class P$: pass\nclass A$(P$):\n    k = 1\n    def __init__(s): s.i = 2\n"
    "    def m(s): return 4\na$ = A$()\n"
)
NET = NETS + "net$.act2 = nn.Tanh()\nnet$.register_parameter('par', nn.Parameter(torch.ones(1)))\n"

HOSTILE = [
    fact(KEYS, "d$[k$] + d$[k2$]", *KEY_CHANGES),
    fact(KEYS, "d$.get(k$, 9) + (k$ in s$) * 2 + (k2$ in fs$) * 4", *KEY_CHANGES),
    fact(KEYS, "len({k$: 1, k2$: 2}) + len({k$, k2$})", *KEY_CHANGES),
    fact(KEYS, "sum(d$.values()) + len(set(d$)) + sum(c.n for c in d$)", *KEY_CHANGES),
    fact(
        KEYS,
        "(k$ == k2$) + 2 * (k$ in [k2$]) + 4 * [k2$, k$].index(k$) + 8 * [k$, k2$].count(k$)",
        *KEY_CHANGES,
        *added("K$.__ne__", "lambda s, o: True"),
    ),
    fact(
        KEYS,
        "(k$ != k2$) + 2 * ((k$, 1) == (k2$, 1)) + 4 * ([k$] != [k2$]) + 8 * ({1: k$} == {1: k2$})",
        *KEY_CHANGES,
        *added("K$.__ne__", "lambda s, o: False"),
    ),
    fact(
        "class K$(str): pass\nd$ = {'a': 1}\nk$ = K$('a')\n",
        "d$.get(k$, 5) + (k$ == 'a') + len({k$, 'a'})",
        *added("K$.__hash__", "lambda s: 77"),
        *added("K$.__eq__", "lambda s, o: False"),
    ),
    fact(
        "class K$(int): pass\nd$ = {1: 1}\nk$ = K$(1)\n",
        "d$.get(k$, 5) + (k$ == 1) + len({k$, 1}) + [7, 8][k$]",
        *added("K$.__hash__", "lambda s: 77"),
        *added("K$.__eq__", "lambda s, o: False"),
        *added("K$.__index__", "lambda s: 0"),
    ),
    fact(
        "class K$(tuple): pass\nd$ = {(1, 2): 1}\nk$ = K$((1, 2))\n",
        "d$.get(k$, 5) + (k$ == (1, 2))",
        *added("K$.__hash__", "lambda s: 77"),
        *added("K$.__eq__", "lambda s, o: False"),
    ),
    fact(
        "@dataclasses.dataclass(frozen=True)\nclass K$:\n    n: int\nk$ = K$(1)\n"
        "d$ = {K$(1): 4, K$(2): 5}\n",
        "d$[k$] + d$.get(K$(2), 9)",
        *replaced("K$.__hash__", "lambda s: 77"),
        *replaced("K$.__eq__", "lambda s, o: False"),
        *stored("k$", "K$(1)", "K$(2)", "K$(3)"),
        ("object.__setattr__(k$, 'n', 2)", "object.__setattr__(k$, 'n', 1)"),
    ),
    fact(
        META.replace("k = 3", "k = 3\n    def __hash__(s): return 3")
        + "d$ = {A$: 4, B$: 5, int: 6}\n",
        "d$[A$] + d$.get(B$, 8) + (A$ in d$) + (A$ == B$)",
        *added("M$.__hash__", "lambda c: 7"),
        *added("M$.__eq__", "lambda c, o: True"),
        ("M$.__eq__ = lambda c, o: True; M$.__hash__ = lambda c: 1", "del M$.__eq__, M$.__hash__"),
    ),
    fact(
        META,
        "A$.k + getattr(A$, 'z', 1) + hasattr(A$, 'q')",
        *added("M$.k", "property(lambda c: 8)", "9"),
        *added("M$.z", "property(lambda c: 8)", "lambda c: 1", "9"),
        *added("M$.q", "property(lambda c: c.nope)", "1"),
        *added("M$.__getattr__", "lambda c, n: 10"),
        *added("M$.__getattribute__", "lambda c, n: 11"),
    ),
    fact(
        META,
        "A$().k + a$.m() + isinstance(a$, B$)",
        *added("M$.__call__", "lambda c: types.SimpleNamespace(k=20)"),
        *added("M$.m", "lambda c: 7"),
        *added("M$.k", "property(lambda c: 8)"),
        *added("M$.__instancecheck__", "lambda c, o: False"),
    ),
    fact(
        META, "tried(lambda: A$.mm())", *added("M$.mm", "lambda c: 7", "classmethod(lambda c: 8)")
    ),
    fact(
        META,
        "tried(lambda: a$.mm())",
        *added("M$.mm", "lambda c: 7"),
        *added("B$.mm", "lambda c: 8"),
    ),
    fact(
        META,
        "tried(lambda: len(A$)) + tried(lambda: A$[1]) + tried(lambda: sum(A$)) + "
        "tried(lambda: 1 in A$)",
        *added("M$.__len__", "lambda c: 3"),
        *added("M$.__getitem__", "lambda c, k: [30][k - 1]"),
        *added("M$.__iter__", "lambda c: iter([5])"),
        *added("M$.__contains__", "lambda c, k: True"),
        *added("B$.__class_getitem__", "classmethod(lambda c, k: 6)"),
        *added("A$.__class_getitem__", "lambda k: 8"),
    ),
    fact(
        META,
        "(7 if A$ else 8) + tried(lambda: A$ + 1) + tried(lambda: 1 + A$) + tried(lambda: -A$) + "
        "tried(lambda: A$ < B$) + len(repr(A$)[:1]) + len(str(A$)) % 7 + len(f'{A$}') % 7",
        *added("M$.__bool__", "lambda c: False"),
        *added("M$.__len__", "lambda c: 0"),
        *added("M$.__add__", "lambda c, o: 40"),
        *added("M$.__radd__", "lambda c, o: 50"),
        *added("M$.__neg__", "lambda c: 60"),
        *added("M$.__lt__", "lambda c, o: 3"),
        *added("M$.__repr__", "lambda c: 'x'"),
        *added("M$.__str__", "lambda c: 'xy'"),
        *added("M$.__format__", "lambda c, f: 'xyz'"),
    ),
    fact(
        META,
        "(A$ == 3) + (A$ != B$) * 2 + (A$ in [B$]) * 4 + (A$ in (A$, 1)) * 8",
        *added("M$.__eq__", "lambda c, o: True"),
        *added("M$.__ne__", "lambda c, o: False"),
    ),
    fact(
        META,
        "(setattr(A$, 'zz', 3), A$.zz)[1]",
        *added("M$.__setattr__", "lambda c, n, v: type.__setattr__(c, n, 9)"),
        *added("M$.zz", "property(lambda c: 1, lambda c, v: None)"),
    ),
    fact(
        META + "class S$(A$):\n    def m(s): return super().m() + super(A$, s).m()\ns$ = S$()\n",
        "s$.m()",
        *added("A$.m", "lambda s: 100"),
        *stored("A$.__bases__", "(B$,)", "(C$,)"),
        *replaced("B$.m", "lambda s: 200"),
    )._replace(
        setup=META
        + "class C$(B$):\n    def m(s): return 50\n"
        + "class S$(A$):\n    def m(s): return super().m() + super(A$, s).m()\ns$ = S$()\n"
    ),
    fact(
        NET,
        "net$(x) + net$.lin(x) + net$.par.sum() + net$.act2(x)",
        ("net$._parameters['act'] = None", "del net$._parameters['act']"),
        ("net$._buffers['act'] = nn.Tanh()", "del net$._buffers['act']"),
        ("net$._parameters['act'] = nn.Tanh()", "del net$._parameters['act']"),
        ("net$._parameters['lin'] = nn.Identity()", "del net$._parameters['lin']"),
        ("net$._parameters['buf'] = torch.ones(1) * 5", "del net$._parameters['buf']"),
        ("net$._modules['par'] = torch.ones(1) * 5", "del net$._modules['par']"),
        ("net$._buffers['par'] = torch.ones(1) * 5", "del net$._buffers['par']"),
        ("vars(net$)['par'] = torch.ones(1) * 6", "del vars(net$)['par']"),
        ("vars(net$)['act'] = nn.Tanh()", "del vars(net$)['act']"),
        ("vars(net$)['buf'] = torch.ones(1) * 7", "del vars(net$)['buf']"),
        ("net$._buffers['scale'] = 7.0", "del net$._buffers['scale']"),
        ("net$.lin._buffers['weight'] = torch.ones(1, 1) * 7", "del net$.lin._buffers['weight']"),
        ("net$._modules = dict(net$._modules, act=nn.Tanh())", "net$._modules = net$._modules"),
        *added("Net$.par", "torch.ones(1) * 4"),
        *added("Net$.act2", "nn.Identity()"),
        *added("Net$._parameters", "property(lambda s: {})"),
    ),
    fact(
        NET,
        "net$(x) + len(list(net$.parameters())) + len(list(net$.named_modules()))",
        ("net$.lin.weight.requires_grad_(False)", "net$.lin.weight.requires_grad_(True)"),
        (
            "net$.lin.weight.data = torch.full((1, 1), 5.)",
            "net$.lin.weight.data = torch.ones(1, 1)",
        ),
        ("net$.lin.double()", "net$.lin.float()"),
        ("net$.lin.weight = net$.par", "net$.lin.weight = nn.Parameter(torch.ones(1, 1))"),
        ("net$.add_module('new', nn.ReLU())", "del net$.new"),
        ("old$ = net$.act; net$.act = net$.act2", "net$.act = old$"),
        (
            "net$.lin.register_forward_pre_hook(lambda m, a: (a[0] * 3,))",
            "net$.lin._forward_pre_hooks.clear()",
        ),
        ("net$.register_forward_hook(lambda m, a, o: o * 3)", "net$._forward_hooks.clear()"),
        ("net$.register_full_backward_hook(lambda m, a, o: None)", "net$._backward_hooks.clear()"),
        (
            "net$.lin.register_forward_hook(lambda m, a, k, o: o * 3, with_kwargs=True)",
            "net$.lin._forward_hooks.clear()",
        ),
        (
            "net$.lin.__class__ = type('L', (nn.Linear,), {'forward': lambda s, x: x * 9})",
            "net$.lin.__class__ = nn.Linear",
        ),
        ("net$.lin.in_features = 9", "net$.lin.in_features = 1"),
        (
            "nn.utils.parametrizations.weight_norm(net$.lin)",
            "nn.utils.parametrize.remove_parametrizations(net$.lin, 'weight')",
        ),
        ("net$.lin.weight.register_hook(lambda g: g)", "net$.lin.weight._backward_hooks.clear()"),
        (
            "net$._modules.move_to_end('lin') if hasattr(net$._modules, 'move_to_end') else "
            "net$._modules.update(lin=net$._modules.pop('lin'))",
            "",
        ),
    ),
    fact(
        NET,
        "sum(p.sum() for p in net$.parameters()) + sum(len(n) for n, _ in net$.named_children()) + "
        "sum(b.sum() for b in net$.buffers()) + len(net$.state_dict())",
        (
            "net$.lin.weight = nn.Parameter(torch.ones(1, 1) * 3)",
            "net$.lin.weight = nn.Parameter(torch.ones(1, 1))",
        ),
        ("net$.register_buffer('b2', torch.ones(1))", "del net$.b2"),
        ("net$.register_buffer('b3', torch.ones(1), persistent=False)", "del net$.b3"),
        (
            "net$._non_persistent_buffers_set.add('buf')",
            "net$._non_persistent_buffers_set.discard('buf')",
        ),
        *added("Net$.parameters", "lambda s: [torch.ones(1)]"),
        *added("Net$.named_children", "lambda s: []"),
        *added("net$.parameters", "lambda: [torch.ones(1) * 2]"),
    ),
    fact(
        OBJ,
        "len(vars(a$)) + vars(a$)['i'] + a$.__dict__.get('z', 3) + ('i' in vars(a$))",
        *added("A$.i", "property(lambda s: 46)", "7"),
        *added("a$.z", "8"),
        *added("A$.z", "property(lambda s: 46)"),
        *added(
            "A$.__getattribute__", "lambda s, n: 15 if n == 'i' else object.__getattribute__(s, n)"
        ),
        *added(
            "P$.__getattribute__",
            "lambda s, n: {'i': 1, 'z': 2} if n == '__dict__' else object.__getattribute__(s, n)",
        ),
        ("a$.__dict__ = {'i': 9, 'z': 1}", "a$.__dict__ = {'i': 2}"),
    ),
    fact(
        OBJ,
        "sum(v for v in vars(a$).values()) + a$.i + sum(len(n) for n in vars(a$))",
        *added("A$.i", "property(lambda s: 46)", "property(lambda s: 46, lambda s, v: None)"),
        *added("a$.zz", "5"),
        ("del a$.i", "a$.i = 2"),
    ),
    fact(
        OBJ + "log$ = []\n",
        "(log$.clear(), a$.i + len(log$) + a$.i + len(log$))[1]",
        (
            "def gi(s):\n    log$.append(1)\n    return 2\nA$.i = property(gi)",
            "del A$.i; log$.clear()",
        ),
        (
            "def ga(s, n):\n    log$.append(1)\n    return object.__getattribute__(s, n)\n"
            "A$.__getattribute__ = ga",
            "del A$.__getattribute__; log$.clear()",
        ),
    ),
    fact(
        "class D$:\n    def __get__(s, o, c): return 5\nclass A$: d = D$()\na$ = A$()\n",
        "a$.d + A$.d",
        *added("a$.d", "8"),
        *added("D$.__set__", "lambda s, o, v: None"),
        *added("D$.__delete__", "lambda s, o: None"),
        *replaced("D$.__get__", "lambda s, o, c: 6 if o is None else 7"),
        ("del D$.__get__", "D$.__get__ = lambda s, o, c: 5"),
        *stored("A$.d", "D$()", "3"),
    ),
    fact(
        "class D$: v = 5\nclass A$: d = D$()\na$ = A$()\n",
        "a$.d.v + A$.d.v",
        *added("D$.__get__", "lambda s, o, c: D$()"),
        *added("D$.v", "6"),
        *added("a$.d", "types.SimpleNamespace(v=9)"),
        *stored("D$.v", "5", "6"),
    )._replace(
        changes=(
            *added("D$.__get__", "lambda s, o, c: types.SimpleNamespace(v=30)"),
            *added("a$.d", "types.SimpleNamespace(v=9)"),
            *stored("D$.v", "5", "6"),
            *added("A$.d.v", "12"),
        )
    ),
    fact(
        "class A$:\n    @functools.cached_property\n    def c(s): return s.v + 1\na$ = A$()\n"
        "a$.v = 1\n",
        "a$.c + ('c' in vars(a$))",
        ("a$.v = 5; vars(a$).pop('c', None)", "a$.v = 1; vars(a$).pop('c', None)"),
        ("a$.c = 9", "vars(a$).pop('c', None)"),
        *replaced("A$.c", "property(lambda s: 4)"),
    ),
    fact(
        "def outer$():\n    c = 2\n    def get(): return c + (lambda: c)()\n    def put(v):\n"
        "        nonlocal c\n        c = v\n    return get, put\nget$, put$ = outer$()\n",
        "get$() + sum(get$() for _ in range(2))",
        ("put$(5)", "put$(2)"),
        ("put$(2.5)", "put$(2)"),
        ("put$(True)", "put$(2)"),
        ("put$(torch.ones(1))", "put$(2)"),
        ("get$.__closure__[0].cell_contents = 7", "get$.__closure__[0].cell_contents = 2"),
    ),
    fact(
        "def a$(): return b$()\ndef b$(): return c$\nc$ = 2\n",
        "a$()",
        *replaced("b$", "lambda: 7", "c$"),
        *stored("c$", "2", "3"),
        ("b$.__code__ = (lambda: 8).__code__", "b$.__code__ = (lambda: c$).__code__"),
        *added("b$.__call__", "lambda: 1"),
        ("globals().update(c$=9)", "globals().update(c$=2)"),
        ("del c$; builtins.c$ = 6", "c$ = 2; del builtins.c$"),
    ),
    fact(
        "d$ = {'b': 1, 'a': 2, 'c': 3}\n",
        "next(iter(d$.values())) + [v * n for n, v in enumerate(d$.values())][1] + "
        "list(d$)[0].__len__() + sum(n * v for n, v in enumerate({**d$}.values()))",
        ("d$['b'] = d$.pop('b')", "d$ = {'b': 1, 'a': 2, 'c': 3}"),
        ("d$[0] = 4", "del d$[0]"),
        ("d$.update(a=9)", "d$.update(a=2)"),
        ("d$ = dict(reversed(d$.items()))", "d$ = dict(reversed(d$.items()))"),
        ("d$ = collections.OrderedDict(reversed(d$.items()))", "d$ = {'b': 1, 'a': 2, 'c': 3}"),
    ),
    fact(
        "d$ = {'b': 1, 'a': 2}\ndef kw$(**k): return next(iter(k.values())) + 10 * len(k)\n",
        "kw$(**d$) + sum(n * v for n, v in enumerate(d$.values()))",
        ("d$['b'] = d$.pop('b')", "d$ = {'b': 1, 'a': 2}"),
        ("d$ = types.MappingProxyType({'a': 2, 'b': 1})", "d$ = {'b': 1, 'a': 2}"),
        ("d$[1] = 1", "del d$[1]"),
    ),
    fact(
        "class B$:\n    __slots__ = ('u', '__weakref__')\nclass A$(B$):\n    __slots__ = ('v',)\n"
        "a$ = A$()\na$.u = 1\na$.v = 2\n",
        "a$.u + a$.v + tried(lambda: a$.w) + hasattr(a$, '__dict__')",
        *stored("a$.u", "1", "5"),
        ("del a$.v", "a$.v = 2"),
        *added("A$.u", "9", "property(lambda s: 8)"),
        *added("A$.w", "9"),
        ("old$ = B$.u; B$.u = 4", "B$.u = old$"),
        ("old$ = A$.v; A$.v = B$.u", "A$.v = old$"),
        ("old$ = a$; a$ = B$(); a$.u = 3", "a$ = old$"),
    ),
    fact(
        "class A$:\n    __slots__ = ()\n    def __add__(s, o): return 1\nclass B$:\n"
        "    __slots__ = ()\n"
        "    def __add__(s, o): return 2\n    def __call__(s): return 30\na$ = A$()\n",
        "tried(lambda: a$ + 1) + tried(lambda: a$())",
        ("a$.__class__ = B$", "a$.__class__ = A$"),
        *added("A$.__call__", "lambda s: 4"),
        *replaced("A$.__add__", "lambda s, o: NotImplemented"),
    ),
    fact(
        "class A$: v = 3\na$ = A$()\nr$ = weakref.ref(a$)\npr$ = weakref.proxy(a$)\n",
        "(1 if r$() is None else r$().v) + tried(lambda: pr$.v)",
        *stored("a$.v", "3", "8"),
        ("del a$", "a$ = A$(); r$ = weakref.ref(a$); pr$ = weakref.proxy(a$)"),
        ("a$ = A$(); r$ = weakref.ref(a$)", ""),
    ),
    fact(
        "class A$: v = 3\na$ = A$()\nwk$ = weakref.WeakKeyDictionary({a$: 5})\n"
        "ws$ = weakref.WeakSet([a$])\nwm$ = weakref.WeakMethod(a$.__init__) if False else None\n",
        "len(wk$) + sum(wk$.values()) + len(ws$) + (a$ in ws$) + wk$.get(a$, 7)",
        ("a$ = A$()", "wk$[a$] = 5; ws$.add(a$)"),
        ("wk$[a$] = 9", "wk$[a$] = 5"),
        ("ws$.discard(a$)", "ws$.add(a$)"),
    ),
    fact(
        "class A$:\n    def __init__(s, v=1): s.v = v\n    def __enter__(s): return s.v\n"
        "    def __exit__(s, *a): return False\ndef u$():\n    with A$(3) as v: return v\n",
        "tried(u$)",
        *replaced("A$.__enter__", "lambda s: 9"),
        *replaced("A$.__exit__", "lambda s, *a: [][1]"),
        *replaced("A$.__init__", "lambda s, v: setattr(s, 'v', 5)"),
        ("old$ = A$.__enter__; del A$.__enter__", "A$.__enter__ = old$"),
        *stored("A$.__init__.__defaults__", "(1,)", "(2,)"),
        *added("A$.v", "property(lambda s: 8, lambda s, v: None)"),
    ),
    fact(
        "class A$:\n    def __iter__(s): return iter([1, 2])\n    def __len__(s): return 2\n"
        "    def __getitem__(s, i): return [5, 6][i]\na$ = A$()\n",
        "sum(a$) + sum([*a$]) + len((*a$,)) + max(a$) + len(a$) + a$[-1] + sum(a$[:1]) + "
        "(lambda p, q: p)(*a$) + (1 in a$)",
        *replaced("A$.__iter__", "lambda s: iter([7, 8])"),
        ("old$ = A$.__iter__; del A$.__iter__", "A$.__iter__ = old$"),
        *replaced("A$.__getitem__", "lambda s, i: [3, 4][i]"),
        *replaced("A$.__len__", "lambda s: 3"),
        *added("A$.__contains__", "lambda s, o: False"),
        *added("A$.__length_hint__", "lambda s: 9"),
        *added("A$.__reversed__", "lambda s: 9"),
    ),
    fact(
        "class A$:\n    def __init__(s, v): s.v = v\na$ = A$(2)\n",
        "tried(lambda: int(a$)) + tried(lambda: float(a$)) + tried(lambda: round(a$)) + "
        "tried(lambda: [1, 2, 3][a$]) + tried(lambda: abs(a$)) + tried(lambda: range(a$).stop) + "
        "tried(lambda: math.floor(a$)) + tried(lambda: divmod(a$, 2)[0]) + tried(lambda: "
        "complex(a$).real)",
        *added("A$.__int__", "lambda s: s.v"),
        *added("A$.__float__", "lambda s: 2.5"),
        *added("A$.__index__", "lambda s: 1"),
        *added("A$.__round__", "lambda s: 9"),
        *added("A$.__abs__", "lambda s: 4"),
        *added("A$.__floor__", "lambda s: 4"),
        *added("A$.__trunc__", "lambda s: 4"),
        *added("A$.__divmod__", "lambda s, o: (4, 3)"),
        *added("A$.__complex__", "lambda s: 4j + 1"),
        *stored("a$.v", "2", "1"),
    ),
    fact(
        "class A$:\n    def __init__(s, v): s.v = v\n    def __lt__(s, o): return s.v < o.v\n"
        "l$ = [A$(3), A$(1), A$(2)]\n",
        "sorted(l$)[0].v + min(l$).v + max(l$, key=lambda a: a.v).v + sorted(l$, key=key$)[0].v",
        *replaced("A$.__lt__", "lambda s, o: s.v > o.v"),
        *added("A$.__gt__", "lambda s, o: True"),
        *stored("key$", "lambda a: a.v", "lambda a: -a.v"),
        ("l$.reverse()", "l$.reverse()"),
        *stored("l$[0].v", "3", "0"),
    )._replace(
        setup="class A$:\n    def __init__(s, v): s.v = v\n    def __lt__(s, o): return s.v < o.v\n"
        "l$ = [A$(3), A$(1), A$(2)]\nkey$ = lambda a: a.v\n"
    ),
    fact(
        "x1$ = torch.ones(2, 2)\n",
        "torch.ones(1).dtype.itemsize + torch.tensor(1.5).dtype.itemsize + torch.zeros(2).sum() + "
        "len(str(torch.get_default_device())) + torch.get_default_dtype().itemsize",
        ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)"),
        ("torch.set_default_device('cpu')", "torch.set_default_device(None)"),
    ),
    fact(
        "",
        "(1 if torch.get_float32_matmul_precision() == 'highest' else 5) + "
        "torch.backends.mkldnn.enabled + torch.is_deterministic_algorithms_warn_only_enabled() + "
        "torch.get_deterministic_debug_mode() + torch.get_flush_denormal() * 2"
        if False
        else "(1 if torch.get_float32_matmul_precision() == 'highest' else 5) + "
        "torch.get_deterministic_debug_mode() + torch.backends.cuda.matmul.allow_tf32 * 3",
        (
            "torch.set_float32_matmul_precision('medium')",
            "torch.set_float32_matmul_precision('highest')",
        ),
        ("torch.set_deterministic_debug_mode(1)", "torch.set_deterministic_debug_mode(0)"),
        (
            "torch.backends.cuda.matmul.allow_tf32 = True",
            "torch.backends.cuda.matmul.allow_tf32 = False",
        ),
    ),
    fact(
        "",
        "len(str(torch.get_rng_state().dtype)) + torch.get_num_interop_threads() * 0 + "
        "torch.is_warn_always_enabled() * 4 + torch._C._get_nnpack_enabled() * 0 + "
        "torch.backends.cuda.flash_sdp_enabled() * 2 + torch.is_autocast_cache_enabled() * 8",
        ("torch.set_warn_always(True)", "torch.set_warn_always(False)"),
        (
            "torch.backends.cuda.enable_flash_sdp(False)",
            "torch.backends.cuda.enable_flash_sdp(True)",
        ),
        ("torch.set_autocast_cache_enabled(False)", "torch.set_autocast_cache_enabled(True)"),
    ),
    fact(
        "pt$ = torch.ones(3)\n",
        "pt$.sum() + len(repr(pt$)) % 13 + len(str(pt$[0])) % 11",
        ("torch.set_printoptions(precision=1)", "torch.set_printoptions(profile='default')"),
        ("pt$.fill_(2.25)", "pt$.fill_(1)"),
    ),
    fact(
        "p$ = nn.Parameter(torch.ones(1))\nb$ = torch.ones(1)\n",
        "(p$ * x).sum() + p$.requires_grad * 2 + b$.requires_grad * 4 + b$.is_leaf * 8 + "
        "(b$.grad_fn is None) * 16 + isinstance(b$, nn.Parameter) * 32 + b$._version * 0",
        ("p$.requires_grad_(False)", "p$.requires_grad_(True)"),
        ("b$.requires_grad_(True)", "b$.requires_grad_(False)"),
        ("b$ = p$ * 2", "b$ = torch.ones(1)"),
        ("b$ = nn.Parameter(b$)", "b$ = torch.ones(1)"),
        ("p$.data = torch.ones(1, dtype=torch.float64)", "p$.data = torch.ones(1)"),
        ("p$.grad = torch.ones(1)", "p$.grad = None"),
        ("p$.register_hook(print)", "p$._backward_hooks.clear()"),
        ("p$.retain_grad()", ""),
        ("p$ = b$", "p$ = nn.Parameter(torch.ones(1))"),
    ),
    fact(
        "b$ = torch.arange(6.).reshape(2, 3)\nc$ = b$\n",
        "b$.sum() + b$.stride()[0] + b$.is_contiguous() * 2 + b$.storage_offset() * 4 + "
        "b$.numel() + (b$ is c$) * 3 + (b$.data_ptr() == c$.data_ptr()) * 5 + b$.is_conj()",
        ("b$ = b$.t()", "b$ = c$"),
        ("b$ = b$[1:]", "b$ = c$"),
        ("b$ = b$.clone()", "b$ = c$"),
        ("b$ = b$[:]", "b$ = c$"),
        ("b$ = torch.arange(8.).reshape(2, 4)", "b$ = c$"),
        ("b$ = b$.expand(1, 2, 3)", "b$ = c$"),
        ("b$ = b$.to(torch.complex64).conj().real", "b$ = c$"),
        ("b$.resize_(3, 2)", "b$.resize_(2, 3)"),
    ),
    fact(
        "f$ = len\nm$ = 'abc'.upper\nt$ = torch.sin\n",
        "f$('abc') + len(m$()) + t$(x).sum()",
        *stored("f$", "len", "lambda s: 7", "str.__len__"),
        *stored("m$", "'abc'.upper", "'abcd'.upper", "'abc'.__str__"),
        *stored("t$", "torch.sin", "torch.cos", "math.sin", "torch.Tensor.sin"),
    ),
    fact(
        "class C$:\n    def __call__(s, v=1): return v + s.k\n    k = 2\nc$ = C$()\n"
        "b$ = c$.__call__\n",
        "c$() + b$() + callable(c$)",
        *replaced("C$.__call__", "lambda s, v=1: 9"),
        *added("c$.__call__", "lambda: 30"),
        *added("c$.k", "5"),
        *stored("C$.__call__.__defaults__", "(1,)", "(4,)"),
        ("c$.__class__ = type('D', (C$,), {'__call__': lambda s: 77})", "c$.__class__ = C$"),
    ),
    fact(
        "class E$(Exception):\n    code = 3\ndef r$(): raise E$('a', 2)\ndef t$():\n    try: r$()\n"
        "    except E$ as e: return e.code + len(e.args) + len(str(e))\n"
        "    except Exception as e: return 50 + len(e.args)\n",
        "t$()",
        *stored("E$.code", "3", "4"),
        *added("E$.__str__", "lambda s: 'x'"),
        *added("E$.__init__", "lambda s, *a: None"),
        *stored("E$", "E$", "KeyError"),
        (
            "r$.__code__ = (lambda: 1 / 0).__code__",
            "r$.__code__ = (lambda: (_ for _ in ()).throw(E$('a', 2))).__code__",
        ),
    ),
    fact(
        "def g$(n=2):\n    for i in range(n):\n        yield i + k$\nk$ = 1\n",
        "sum(g$()) + list(g$(3))[-1] + next(g$())",
        *stored("k$", "1", "5"),
        *stored("g$.__defaults__", "(2,)", "(4,)"),
        *replaced("g$", "lambda n=2: iter([9] * n)"),
        *added("range", "lambda n: [1, 2]"),
    ),
    fact(
        "ctx$ = contextvars.ContextVar('c$', default=4)\n",
        "ctx$.get() + ctx$.get(9)",
        ("tok$ = ctx$.set(8)", "ctx$.reset(tok$)"),
        *replaced("ctx$", "contextvars.ContextVar('d$', default=6)"),
    ),
    fact(
        "tl$ = threading.local()\ntl$.v = 3\n",
        "tl$.v + hasattr(tl$, 'w')",
        *stored("tl$.v", "3", "5"),
        *added("tl$.w", "5"),
    ),
    fact(
        "import dataclasses as dc$\n@dc$.dataclass\nclass P$:\n    u: int = 1\n"
        "    l: list = dc$.field(default_factory=list)\n",
        "P$().u + len(P$().l) + len(dc$.fields(P$)) + P$(u=4).u",
        *stored(
            "P$.__init__.__defaults__",
            "P$.__init__.__defaults__",
            "(6,) + P$.__init__.__defaults__[1:]",
        ),
        *added("P$.__post_init__", "lambda s: setattr(s, 'u', 9)"),
        *stored("P$.u", "1", "5"),
        *replaced("P$.__init__", "lambda s, u=1: vars(s).update(u=8, l=[1, 2])"),
    ),
    fact(
        "n$ = 3\nl$ = [1, 2, 3, 4]\n",
        "sum(l$[:n$]) + sum(range(n$)) + len('a' * n$) + x.new_ones(n$).sum() + l$[n$]",
        *stored("n$", "3", "2", "0", "1", "-1", "True"),
        ("l$.insert(0, 9)", "l$.pop(0)"),
    ),
    fact(
        "s$ = 'ab'\nf$ = 0.5\nc$ = 1j\nb$ = b'a'\nz$ = -0.0\nnan$ = float('nan')\n",
        "len(s$) + x * f$ + (c$ * c$).real + b$[0] + math.copysign(1, z$) + (nan$ != nan$) + "
        "x / z$",
        *stored("s$", "'ab'", "'abc'"),
        *stored("f$", "0.5", "1.5", "2"),
        *stored("c$", "1j", "2j"),
        *stored("z$", "-0.0", "0.0", "0"),
        *stored("nan$", "float('nan')", "1.0"),
    ),
    fact(
        "class A$(list):\n    tag = 1\na$ = A$([1, 2])\nclass T$(tuple): tag = 2\n"
        "t$ = T$((1, 2))\n",
        "a$.tag + sum(a$) + t$.tag + sum(t$) + getattr(a$, 'z', 3) + len(a$ + [1])",
        *added("a$.z", "4"),
        *added("a$.tag", "5"),
        *added("t$.tag", "5"),
        *added("A$.tag2", "5"),
        *stored("A$.tag", "1", "9"),
        *added("A$.__iter__", "lambda s: iter([9])"),
        *added("A$.__add__", "lambda s, o: []"),
        *added("T$.__iter__", "lambda s: iter([9])"),
        ("a$.__class__ = type('AA', (A$,), {'tag': 70})", "a$.__class__ = A$"),
    ),
    fact(
        "d$ = collections.OrderedDict(a=1, b=2)\nclass D$(dict):\n    tag = 3\nm$ = D$(a=1)\n"
        "m$.own = 2\n",
        "m$.own + m$.tag + list(d$.values())[0] + m$['a'] + getattr(m$, 'zz', 5)",
        *stored("m$.own", "2", "3"),
        *added("D$.own", "9", "property(lambda s: 8)"),
        *added("D$.zz", "9", "property(lambda s: 8)"),
        *added("m$.zz", "7"),
        *added("m$.tag", "7"),
        *added("D$.__getattr__", "lambda s, n: 6"),
        *added("D$.__getattribute__", "lambda s, n: 6"),
        *added("D$.__getitem__", "lambda s, n: 16"),
        ("d$.move_to_end('a')", "d$.move_to_end('b')"),
        ("m$.__class__ = type('DD', (D$,), {'tag': 70})", "m$.__class__ = D$"),
    ),
]
