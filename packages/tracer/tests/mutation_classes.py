"""More kinds of facts for the mutation fuzzer: operators of enums, hashing, containers of modules,
descriptors, cells, dispatch by class, and what the standard library reads for its callers."""

from __future__ import annotations

from mutation_facts import NETS, added, fact, replaced, stored

ENUM = "class Color$(enum.Enum):\n    RED = 1\n    BLUE = 2\nc$ = Color$.RED\n"
OBJ = (
    "class P$: pass\nclass A$(P$):\n    k = 1\n    def __init__(s): s.i = 2\n"
    "    @property\n    def p(s): return s.i + 1\n    def m(s): return 4\na$ = A$()\n"
)
CLASSES_AND_LIBRARY = [
    fact(
        ENUM,
        "Color$(1).value + (Color$(2) is c$)",
        ("Color$._value2member_map_[1] = Color$.BLUE", "Color$._value2member_map_[1] = Color$.RED"),
        ("del Color$._value2member_map_[2]", "Color$._value2member_map_[2] = Color$.BLUE"),
        *added("Color$._missing_", "classmethod(lambda c, v: c.RED)"),
        *added("Color$.__new__", "lambda c, v: Color$.RED"),
    ),
    fact(
        ENUM,
        "tried(lambda: Color$(7).value)",
        *added("Color$._missing_", "classmethod(lambda c, v: c.RED)"),
        ("Color$._value2member_map_[7] = Color$.BLUE", "del Color$._value2member_map_[7]"),
    ),
    fact(
        ENUM,
        "tried(lambda: (c$ + 1))",
        *added("Color$.__add__", "lambda s, o: 7"),
        *added("Color$.__radd__", "lambda s, o: 9"),
    ),
    fact(ENUM, "tried(lambda: (1 + c$))", *added("Color$.__radd__", "lambda s, o: 9")),
    fact(
        ENUM,
        "(5 if c$ else 6) + 2 * (c$ == Color$.BLUE) + 4 * (c$ in {Color$.RED: 1})",
        *added("Color$.__bool__", "lambda s: False"),
        *added("Color$.__eq__", "lambda s, o: True"),
        *replaced("Color$.__hash__", "lambda s: 77"),
    ),
    fact(ENUM, "tried(lambda: len(c$))", *added("Color$.__len__", "lambda s: 7")),
    fact(ENUM, "tried(lambda: c$())", *added("Color$.__call__", "lambda s: 7")),
    fact(
        ENUM,
        "len(f'{c$}') + len(repr(c$))",
        *added("Color$.__format__", "lambda s, f: 'x'"),
        *added("Color$.__repr__", "lambda s: 'x'"),
    ),
    fact(
        ENUM,
        "tried(lambda: c$.extra)",
        *added("Color$.extra", "3", "property(lambda s: 4)"),
        *added("c$.extra", "5"),
        *added("Color$.__getattr__", "lambda s, n: 6"),
    ),
    fact(ENUM, "tried(lambda: (c$ < Color$.BLUE))", *added("Color$.__lt__", "lambda s, o: True")),
    fact(ENUM, "Color$.RED.value + Color$['RED'].value"),
    fact(
        "class K$:\n    def __hash__(s): return 1\n    def __eq__(s, o): return True\n"
        "k$ = K$()\nd$ = {k$: 4}\n",
        "d$.get(k$, 6) + (k$ in d$) + (K$() in d$)",
        *stored("K$.__hash__", "lambda s: 1", "lambda s: 2", "None"),
        *stored("K$.__eq__", "lambda s, o: True", "lambda s, o: False"),
    ),
    fact(
        "class K$: pass\nk$ = K$()\nd$ = {k$: 4}\n",
        "d$.get(k$, 6) + d$[k$] + (k$ in {K$(), k$})",
        *added("K$.__hash__", "None"),
        *added("K$.__eq__", "lambda s, o: True"),
    ),
    fact(
        NETS,
        "net$(x)",
        *added("net$._call_impl", "lambda x: x * 9"),
        *added("net$.lin._call_impl", "lambda x: x * 9"),
        *added("net$.act.forward", "lambda x: x * 11"),
        *added("net$.__call__", "lambda x: x * 12"),
        *stored("net$.act.__class__", "nn.ReLU", "nn.Tanh"),
        *stored("net$.lin.__class__", "nn.Linear", "nn.Identity"),
        (
            "nn.utils.parametrize.register_parametrization(net$.lin, 'weight', nn.Tanh())",
            "nn.utils.parametrize.remove_parametrizations(net$.lin, 'weight', "
            "leave_parametrized=False)",
        ),
        *added("net$._compiled_call_impl", "lambda x: x * 13"),
        ("net$.lin.bias = nn.Parameter(torch.ones(1))", "net$.lin.bias = None"),
        (
            "net$.lin.weight = nn.Parameter(torch.ones(1, 1, dtype=torch.float64))",
            "net$.lin.weight = nn.Parameter(torch.ones(1, 1))",
        ),
        ("net$.buf = None", "net$.buf = torch.ones(1)"),
        ("del net$.scale", "net$.scale = 2.0"),
        ("net$.register_buffer('scale2', torch.ones(1)); ", "del net$.scale2"),
        *added("Net$.scale", "property(lambda s: 8.0)"),
        *added("Net$.lin", "staticmethod(lambda x: x * 14)"),
        *added("Net$.buf", "property(lambda s: torch.ones(1) * 3)"),
        *added("nn.Module.act", "staticmethod(lambda x: x * 15)"),
        (
            "nn.Module.__getattr__, saved$ = (lambda s, n: saved$(s, n) if n != "
            "'act' else nn.Tanh()), nn.Module.__getattr__",
            "nn.Module.__getattr__ = saved$",
        ),
    ),
    fact(
        "seq$ = nn.Sequential(nn.Identity(), nn.ReLU())\n"
        "ml$ = nn.ModuleList([nn.Identity()])\nmd$ = nn.ModuleDict({'a': nn.Identity()})\n"
        "pl$ = nn.ParameterList([torch.ones(1)])\n",
        "seq$(x) + len(ml$) + sum(m(x) for m in ml$) + sum(len(k) for k in md$) "
        "+ md$['a'](x) + sum(pl$)",
        ("seq$.append(nn.Tanh())", "del seq$[2]"),
        ("seq$[0] = nn.Tanh()", "seq$[0] = nn.Identity()"),
        ("ml$.append(nn.Tanh())", "ml$.pop(-1)"),
        ("ml$[0] = nn.Tanh()", "ml$[0] = nn.Identity()"),
        ("md$['bb'] = nn.Tanh()", "del md$['bb']"),
        ("md$['a'] = nn.Tanh()", "md$['a'] = nn.Identity()"),
        ("pl$.append(torch.ones(1) * 3)", "pl$.__delattr__('1'); pl$._size = 1"),
        ("pl$[0] = torch.ones(1) * 4", "pl$[0] = torch.ones(1)"),
        (
            "seq$._modules['1'], seq$._modules['0'] = seq$._modules['0'], seq$._modules['1']",
            "seq$._modules['1'], seq$._modules['0'] = seq$._modules['0'], seq$._modules['1']",
        ),
        *stored("nn.Sequential.__iter__", "real_iter", "lambda s: iter([s[0]])"),
    ),
    fact(
        OBJ,
        "a$.p",
        ("saved$ = A$.p; A$.p = 5", "A$.p = saved$"),
        ("del A$.p", "A$.p = property(lambda s: s.i + 1)"),
        ("old$ = A$.p; A$.p = old$.setter(lambda s, v: None)", "A$.p = old$"),
        *stored("a$.i", "2", "30"),
        *added("A$.i", "property(lambda s: 40)"),
    ),
    fact(
        "class S$:\n    def __get__(s, o, c): return 5\n    def __set__(s, o, v): pass\n"
        "class A$: d = S$()\na$ = A$()\nvars(a$)['d'] = 8\n",
        "a$.d + A$.d",
        ("del S$.__set__", "S$.__set__ = lambda s, o, v: None"),
        ("del S$.__get__", "S$.__get__ = lambda s, o, c: 5"),
        ("old$ = vars(A$)['d']; A$.d = 3", "A$.d = old$"),
        ("del vars(a$)['d']", "vars(a$)['d'] = 8"),
    ),
    fact(
        "def mk$():\n    c = 3\n    def r(): return c\n    def w(v):\n        nonlocal c\n"
        "        c = v\n    def dl():\n        nonlocal c\n        del c\n"
        "    return r, w, dl\nr$, w$, dl$ = mk$()\n",
        "r$()",
        ("w$(8)", "w$(3)"),
        ("dl$()", "w$(3)"),
        ("w$('a')", "w$(3)"),
        ("del r$.__closure__[0].cell_contents", "r$.__closure__[0].cell_contents = 3"),
    ),
    fact(
        "def h$(a=1, *, y=2): return a + y\nq$ = functools.partial(h$, y=5)\n",
        "q$() + len(q$.keywords) + len(q$.args)",
        ("q$.keywords['a'] = 7", "q$.keywords.pop('a')"),
        ("q$.keywords.clear()", "q$.keywords['y'] = 5"),
        ("q$.__setstate__((h$, (4,), {'y': 5}, {}))", "q$.__setstate__((h$, (), {'y': 5}, {}))"),
        (
            "q$.__setstate__((lambda **k: 50, (), {'y': 5}, {}))",
            "q$.__setstate__((h$, (), {'y': 5}, {}))",
        ),
        *stored("h$.__defaults__", "(1,)", "(6,)"),
    ),
    fact(
        "class S$:\n    __slots__ = ('k',)\n    def __init__(s): s.k = 4\ns$ = S$()\n",
        "s$.k",
        ("del s$.k", "s$.k = 4"),
        *stored("s$.k", "4", "5", "'a'"),
        *added("S$.__getattr__", "lambda s, n: 8"),
        ("old$ = S$.k; S$.k = 9", "S$.k = old$"),
        ("del s$.k; S$.__getattr__ = lambda s, n: 7", "s$.k = 4; del S$.__getattr__"),
    ),
    fact(
        "class M$(type): pass\nclass A$(metaclass=M$): pass\na$ = A$()\n",
        "isinstance(a$, A$) + 2 * isinstance(3, A$) + 4 * issubclass(int, A$)",
        *added("M$.__instancecheck__", "lambda c, o: False", "lambda c, o: True"),
        *added("M$.__subclasscheck__", "lambda c, o: True"),
    ),
    fact(
        "class Ab$(abc.ABC): pass\nclass Ac$: pass\nac$ = Ac$()",
        "isinstance(ac$, Ab$) + 2 * issubclass(Ac$, Ab$) + 4 * isinstance(ac$, "
        "collections.abc.Sized) + 8 * isinstance(ac$, collections.abc.Iterable)",
        *added("Ab$.__subclasshook__", "classmethod(lambda c, o: True)"),
        ("Ab$.register(Ac$)", ""),
        *added("Ac$.__len__", "lambda s: 0"),
        *added("Ac$.__iter__", "lambda s: iter([])"),
    ),
    fact(
        "class Ac$: pass\nac$ = Ac$()\n@typing.runtime_checkable\n"
        "class Pr$(typing.Protocol):\n    def go(self): ...\n",
        "isinstance(ac$, Pr$) + callable(ac$) + hasattr(ac$, '__len__') + 8 * "
        "isinstance(ac$, collections.abc.Hashable)",
        *added("Ac$.go", "lambda s: 1"),
        *added("ac$.go", "1"),
        *added("Ac$.__call__", "1"),
        *added("ac$.__len__", "1"),
        *added("Ac$.__hash__", "None"),
    ),
    fact(
        "class X$: k = 1\nclass Y$: k = 2\nclass Z$(X$): pass\nclass W$(Z$): pass\nw$ = W$()\n",
        "w$.k + W$.k + len(W$.__mro__) + isinstance(w$, Y$) + (Y$ in W$.__mro__) "
        "+ len(W$.__bases__)",
        *stored("Z$.__bases__", "(X$,)", "(Y$,)", "(X$, Y$)", "(Y$, X$)"),
        *stored("W$.__bases__", "(Z$,)", "(Y$,)", "(Z$, Y$)"),
    ),
    fact(
        "class D$(dict): pass\nd$ = D$(a=1)\n",
        "tried(lambda: d$['z'])",
        *added("D$.__missing__", "lambda s, k: 5"),
        *added("D$.__getitem__", "lambda s, k: 6"),
        *added("d$['z']", "7"),
        *added("D$.__contains__", "1"),
    ),
    fact(
        "d$ = collections.defaultdict(int, a=1)\no$ = collections.OrderedDict(a=1, b=2)\n"
        "q$ = collections.deque([1, 2], maxlen=3)\nc$ = collections.Counter('aab')\n"
        "m$ = collections.ChainMap({'a': 1}, {'b': 2})\n"
        "p$ = types.MappingProxyType({'a': 1})\n",
        "d$['a'] + len(d$) + d$.default_factory() + next(iter(o$.values())) + "
        "q$[0] + (q$.maxlen or 0) + c$['a'] + c$['z'] + m$['b'] + p$['a']",
        *stored("d$.default_factory", "int", "lambda: 5", "None"),
        ("o$.move_to_end('a')", "o$.move_to_end('b')"),
        ("q$.appendleft(8)", "q$.popleft()"),
        ("c$.update('a')", "c$.subtract('a')"),
        ("m$.maps[0]['b'] = 9", "del m$.maps[0]['b']"),
        ("m$.maps.insert(0, {'b': 4})", "m$.maps.pop(0)"),
        *stored("p$", "types.MappingProxyType({'a': 1})", "types.MappingProxyType({'a': 6})"),
        ("d$['new']", "d$.pop('new', None)"),
        *stored("collections.Counter.__missing__", "real_missing", "lambda s, k: 8"),
    ),
    fact(
        OBJ,
        "(setattr(a$, 'u', 3), a$.u)[1]",
        *added("A$.__setattr__", "lambda s, n, v: object.__setattr__(s, n, 9)"),
        *added("A$.u", "property(lambda s: 1)", "property(lambda s: 1, lambda s, v: None)"),
        *added("P$.__setattr__", "lambda s, n, v: object.__setattr__(s, n, 19)"),
        *stored("a$.__class__", "A$", "P$"),
    ),
    fact(
        OBJ,
        "bm$() + bm$.__self__.i + len(bm$.__name__)",
        *replaced("A$.m", "lambda s: 60"),
        (
            "bm$.__func__.__code__ = (lambda s: 61).__code__",
            "bm$.__func__.__code__ = (lambda s: 4).__code__",
        ),
        *stored("bm$", "a$.m", "A$().m", "lambda: 0"),
        *stored("a$.i", "2", "9"),
    )._replace(setup=OBJ + "bm$ = a$.m\n"),
    fact(
        OBJ + "ag$ = operator.attrgetter('i')\nmc$ = operator.methodcaller('m')\n"
        "ig$ = operator.itemgetter(1)\nl$ = [5, 6]\n",
        "ag$(a$) + mc$(a$) + ig$(l$)",
        *stored("a$.i", "2", "9"),
        *added("A$.i", "property(lambda s: 8)"),
        *added("a$.m", "lambda: 7"),
        *stored("l$[1]", "6", "60"),
        *stored("ag$", "operator.attrgetter('i')", "operator.attrgetter('k')"),
    ),
    fact(
        "@functools.lru_cache\ndef lc$(n=2): return n + 1\nw$ = lc$.__wrapped__\n",
        "lc$() + lc$(5)",
        (
            "w$.__code__ = (lambda n=2: n + 90).__code__; lc$.cache_clear()",
            "w$.__code__ = (lambda n=2: n + 1).__code__; lc$.cache_clear()",
        ),
        ("w$.__defaults__ = (7,); lc$.cache_clear()", "w$.__defaults__ = (2,); lc$.cache_clear()"),
        *stored("lc$", "functools.lru_cache(w$)", "lambda n=3: 70"),
    ),
    fact(
        "@contextlib.contextmanager\ndef cm$():\n    yield 3\ndef g$():\n    yield 1\n"
        "    yield 2\ndef u$():\n    with cm$() as v: return v\n",
        "u$() + sum(g$())",
        (
            "cm$.__wrapped__.__code__, old$ = g$.__code__, cm$.__wrapped__.__code__",
            "cm$.__wrapped__.__code__ = old$",
        ),
        (
            "old$ = g$.__code__\ndef z$():\n    yield 50\ng$.__code__ = z$.__code__",
            "g$.__code__ = old$",
        ),
    ),
    fact(
        "class Q$:\n    def __len__(s): return 3\n    def __getitem__(s, i):\n"
        "        if i > 2: raise IndexError\n        return i\nq$ = Q$()\n",
        "sum(q$) + len(list(reversed(q$))) + (2 in q$) + max(q$) + (7 if q$ else 8)",
        *added("Q$.__iter__", "lambda s: iter([9])"),
        *added("Q$.__reversed__", "lambda s: iter([1])"),
        *added("Q$.__contains__", "lambda s, i: False"),
        *added("Q$.__bool__", "lambda s: False"),
        *stored("Q$.__len__", "lambda s: 3", "lambda s: 0"),
        *stored("Q$.__len__.__name__", "'a'", "'b'"),
    ),
    fact(
        "class Q$:\n    def __add__(s, o): return NotImplemented\nclass R$: pass\n"
        "q$, r$ = Q$(), R$()\n",
        "tried(lambda: (q$ + r$))",
        *added("R$.__radd__", "lambda s, o: 4"),
        *stored("Q$.__add__", "lambda s, o: NotImplemented", "lambda s, o: 5"),
        *added("Q$.__radd__", "lambda s, o: 6"),
    ),
    fact(
        "class Q$:\n    def __iadd__(s, o): return 4\n    def __add__(s, o): return 5\n"
        "q$ = Q$()\ndef i$():\n    z = q$\n    z += 1\n    return z\n",
        "i$()",
        ("del Q$.__iadd__", "Q$.__iadd__ = lambda s, o: 4"),
        *stored("Q$.__iadd__", "lambda s, o: 4", "lambda s, o: NotImplemented"),
    ),
    fact(
        "class B$(int): pass\nb$ = B$(5)\nclass L$(list): pass\nl$ = L$([1, 2])\n"
        "class T$(tuple): pass\nt$ = T$((1, 2))\nclass St$(str): pass\ns$ = St$('ab')\n",
        "b$ + 1 + len(l$) + sum(l$) + t$[0] + len(s$) + len(s$.upper())",
        *added("B$.__add__", "lambda s, o: 40"),
        *added("L$.__len__", "lambda s: 41"),
        *added("L$.__iter__", "lambda s: iter([42])"),
        *added("T$.__getitem__", "lambda s, i: 43"),
        *added("St$.__len__", "lambda s: 44"),
        *added("St$.upper", "lambda s: 'abcdefg'"),
        ("l$.append(9)", "l$.pop()"),
        *stored("b$", "B$(5)", "B$(6)", "5"),
    ),
    fact(
        "class A$:\n    def __init_subclass__(c, **k): c.z = 3\n"
        "    def __class_getitem__(c, k): return k\ndef mk$():\n    class B(A$): pass\n"
        "    return B.z + A$[4]\n",
        "mk$()",
        *replaced(
            "A$.__init_subclass__",
            "classmethod(lambda c, **k: setattr(c, 'z', 30))",
        ),
        *replaced("A$.__class_getitem__", "lambda k: 60"),
    ),
    fact(
        "class A$:\n    def __del__(s): pass\n    def __reduce__(s): return (int, (4,))\n"
        "a$ = A$()\nclass C$:\n    def __init__(s): s.v = [1]\nc$ = C$()\n",
        "copy.copy(a$) + len(copy.deepcopy(c$).v) + (copy.copy(c$).v is c$.v)",
        *replaced("A$.__reduce__", "lambda s: (int, (9,))"),
        *added("A$.__copy__", "lambda s: 8"),
        *added("C$.__deepcopy__", "lambda s, m: c$"),
        ("c$.v.append(2)", "c$.v.pop()"),
        *added("C$.__getstate__", "lambda s: {'v': [1, 2, 3]}"),
        *added("C$.__copy__", "lambda s: C$()"),
    ),
    fact(
        "w$ = torch.ones(1, requires_grad=True)\nz$ = torch.ones(2)\n",
        "(w$ * 2).sum() + len(w$._backward_hooks or ()) + z$.shape[0] + "
        "(z$._version > 100) + (w$ is z$)",
        ("h$ = w$.register_hook(lambda g: g)", "h$.remove()"),
        *stored("z$", "torch.ones(2)", "torch.ones(3)", "w$"),
        ("w$.requires_grad_(False)", "w$.requires_grad_(True)"),
        ("w$.data = torch.full((1,), 4.0)", "w$.data = torch.ones(1)"),
        ("z$.resize_(4)", "z$.resize_(2)"),
        ("z$.set_(torch.ones(3))", "z$.set_(torch.ones(2))"),
        ("z$.t_()", "z$.t_()"),
        ("z$.__class__ = nn.Parameter", "z$ = torch.ones(2)"),
    ),
    fact(
        "a$ = [1, 2]\nb$ = a$\nc$ = [1, 2]\n",
        "(a$ is b$) + (a$ is c$) * 2 + 4 * (a$ == c$) + len({id(a$), id(b$), id(c$)})",
        *stored("b$", "a$", "c$", "[1, 2]"),
        *stored("c$", "[1, 2]", "a$"),
        ("c$.append(1)", "c$.pop()"),
    ),
    fact(
        "t1$ = torch.ones(1)\nt2$ = t1$\nd$ = {'t': t1$}\n",
        "(t1$ is t2$) + 2 * (d$['t'] is t1$) + len({t1$, t2$}) + (t1$ + t2$).sum()",
        *stored("t2$", "t1$", "torch.ones(1)"),
        *stored("d$['t']", "t1$", "t1$.clone()"),
        *stored("t1$", "t2$", "torch.zeros(1)"),
    ),
    fact(
        "def f$(*a, k=1, **kw): return len(a) + k + len(kw)\nargs$ = [1]\nkw$ = {'k': 2}\n",
        "f$(*args$, **kw$)",
        ("args$.append(1)", "args$.pop()"),
        ("kw$['z'] = 1", "del kw$['z']"),
        *stored("kw$['k']", "2", "5"),
        *stored("f$.__kwdefaults__", "{'k': 1}", "{'k': 9}"),
        ("kw$.pop('k')", "kw$['k'] = 2"),
    ),
    fact(
        "class E1$(Exception): pass\ndef r$():\n    try:\n        try: raise E1$(1)\n"
        "        finally: pass\n    except (LookupError, E1$): return 1\n"
        "    except Exception: return 2\n",
        "r$()",
        *stored("E1$.__bases__", "(Exception,)", "(KeyError,)", "(LookupError,)"),
        *stored(
            "LookupError",
            "__builtins__['LookupError'] if isinstance(__builtins__, dict) else "
            "__builtins__.LookupError",
            "Exception",
        ),
        *added("E1$.__new__", "lambda c, *a: ValueError()"),
        *replaced("E1$", "ValueError"),
    ),
    fact(
        "gl$ = [0]\n",
        "sum(1 for n in dir() if n == 'x') + len(gl$) + ('gl$' in globals()) + len(__name__)",
        *replaced("__name__", "'abc'"),
        ("gl$.append(1)", "gl$.pop()"),
    ),
    fact(
        "",
        "len(sys.modules['math'].__name__) + sys.getrecursionlimit() // 1000 + "
        "sys.maxsize % 7 + int(sys.flags.optimize) + len(sys.path) % 3",
        ("sys.setrecursionlimit(5000)", "sys.setrecursionlimit(1000)"),
        ("sys.path.append('zzz')", "sys.path.remove('zzz')"),
        *stored("sys.modules['math']", "math", "types.ModuleType('abc')"),
    ),
    fact(
        "",
        "len(os.getcwd()) * 0 + int(os.getenv('FZ$', '3')) + "
        "len(os.environ.get('FZ$') or '') + os.path.exists('nope$')",
        *added("os.environ['FZ$']", "'5'"),
        *replaced("os.getenv", "lambda *a: 6"),
    ),
    fact(
        "ann$ = 1\nclass A$:\n    x: int = 1\na$ = A$()\n",
        "len(A$.__dict__.get('__annotations__', {})) + ('x' in vars(A$)) + "
        "len(A$.__qualname__) + len(A$.__module__)",
        *stored("A$.__qualname__", "'A$'", "'zz'"),
        *replaced("A$.__module__", "'q'"),
        ("A$.__annotations__['yy'] = int", "del A$.__annotations__['yy']"),
        *stored("A$.__doc__", "None", "'abc'"),
    ),
    fact(
        "class G$:\n"
        "    def __getattribute__(s, n): return 5 if n == 'q' else "
        "object.__getattribute__(s, n)\ng$ = G$()\ng$.z = 1\n",
        "g$.q + g$.z",
        *replaced("G$.__getattribute__", "lambda s, n: 8"),
        (
            "del G$.__getattribute__",
            "G$.__getattribute__ = lambda s, n: 5 if n == 'q' else object.__getattribute__(s, n)",
        ),
        *stored("g$.z", "1", "4"),
    ),
    fact(
        "ns$ = types.SimpleNamespace(k=1)\nr$ = range(3)\nsl$ = slice(0, 2)\n"
        "fs$ = frozenset({1})\nby$ = bytearray(b'ab')\n",
        "ns$.k + sum(r$) + len([1, 2, 3][sl$]) + len(fs$) + by$[0] + len(vars(ns$))",
        *stored("ns$.k", "1", "9"),
        *added("ns$.j", "1"),
        *stored("r$", "range(3)", "range(4)"),
        *stored("sl$", "slice(0, 2)", "slice(1)"),
        *stored("fs$", "frozenset({1})", "frozenset()"),
        ("by$[0] = 65", "by$[0] = 97"),
        *stored("by$", "bytearray(b'ab')", "b'zz'"),
    ),
    fact(
        "def dec$(f):\n    f.mark = 3\n    return f\n@dec$\ndef h$(): return h$.mark\n",
        "h$() + len(h$.__dict__) + len(h$.__qualname__) + (h$.__doc__ is None) + "
        "len(h$.__module__ or '')",
        *stored("h$.mark", "3", "8"),
        *added("h$.other", "1"),
        *stored("h$.__qualname__", "'h$'", "'x'"),
        *stored("h$.__doc__", "None", "'x'"),
        *replaced("h$.__module__", "None"),
    ),
    fact(
        "import random as rnd$\nrnd$.seed(1)\ngen$ = torch.Generator()\n",
        "(rnd$.random() < 2) + (gen$.initial_seed() % 5) + torch.initial_seed() % 3",
        ("gen$.manual_seed(3)", "gen$.manual_seed(67280421310721)"),
        *replaced("rnd$.random", "lambda: 5"),
    ),
    fact(
        "import logging as lg$\nlog$ = lg$.getLogger('fz$')\n",
        "log$.level + log$.isEnabledFor(30) + log$.getEffectiveLevel() + len(log$.name)",
        ("log$.setLevel(40)", "log$.setLevel(0)"),
        *stored("log$.disabled", "False", "True"),
        ("lg$.disable(50)", "lg$.disable(0)"),
    ),
    fact(
        "it$ = [1, 2, 3]\n"
        "mapped$ = lambda: sum(map(fn$, it$)) + sum(filter(None, it$)) + "
        "len(list(zip(it$, it$)))\nfn$ = lambda v: v + 1\n",
        "mapped$()",
        *stored("fn$", "lambda v: v + 1", "lambda v: 0"),
        ("it$.append(5)", "it$.pop()"),
        ("fn$.__code__ = (lambda v: 3).__code__", "fn$.__code__ = (lambda v: v + 1).__code__"),
        *added("map", "lambda f, l: [9]"),
        *added("sum", "lambda l: 11"),
    ),
    fact(
        "@functools.singledispatch\ndef sd$(v): return 1\nclass A$: pass\na$ = A$()\n",
        "sd$(a$) + sd$(3)",
        ("sd$.register(A$, lambda v: 5)", ""),
        ("sd$.register(int, lambda v: 6)", ""),
    ),
    fact(
        "@functools.total_ordering\nclass O$:\n    def __init__(s, v): s.v = v\n"
        "    def __lt__(s, o): return s.v < o.v\n    def __eq__(s, o): return s.v == o.v\n"
        "o$, p$ = O$(1), O$(2)\n",
        "(o$ <= p$) + 2 * (o$ > p$) + 4 * (o$ != p$) + max(o$, p$).v",
        *stored("o$.v", "1", "5", "2"),
        *replaced("O$.__lt__", "lambda s, o: False"),
        *added("O$.__ne__", "lambda s, o: False"),
        *replaced("O$.__gt__", "lambda s, o: True"),
    ),
    fact(
        "import weakref\nclass A$: v = 3\na$ = A$()\nwr$ = weakref.ref(a$)\n"
        "wd$ = weakref.WeakValueDictionary({'a': a$})\n",
        "(wr$() is a$) + (0 if wr$() is None else wr$().v) + len(wd$) + ('a' in wd$)",
        *replaced("a$", "None"),
        ("a$.v = 8", "del a$.v"),
        ("wd$.pop('a')", "wd$['a'] = a$"),
    ),
    fact(
        "P1$ = collections.namedtuple('P1$', 'a b', defaults=[7])\n",
        "P1$(1).b + P1$(1, 2).a + len(P1$._field_defaults) + P1$._make([3, 4])[1]",
        *stored("P1$.__new__.__defaults__", "(7,)", "(9,)", "None"),
        *replaced("P1$.__new__", "lambda c, *a: tuple.__new__(c, (50, 60))"),
        *replaced("P1$._make", "lambda a: (1, 90)"),
        *added("P1$.__getitem__", "lambda s, i: 77"),
    ),
    fact(
        "x1$ = torch.ones(2)\n",
        "x1$.sum() + x1$.mean() + torch.ones(1).item() + torch.nn.functional.relu(x1$).sum()",
        *added("torch.Tensor.mean", "lambda s: 30"),
        *stored("torch.nn.functional.relu", "real_frelu", "lambda v: v * 9"),
        *replaced("torch.ones", "torch.zeros"),
        *added("torch.Tensor.item", "lambda s: 31"),
        *added("x1$.sum", "lambda: torch.zeros(1)"),
    ),
    fact(
        "",
        "abs(-2) + max(1, 2) + sum([1]) + len('a') + int(isinstance(1, int)) + "
        "sorted([2, 1])[0] + int(3.5)",
        *added("max", "lambda *a: 9"),
        *added("builtins.zz$", "1"),
        *added("isinstance", "lambda *a: False"),
        *added("int", "lambda v: 0"),
    ),
]
