"""Mutation between calls: random programs read facts of every kind, one of which is changed.

    python packages/tracer/tests/fuzz_mutation.py --programs 10000 --seed 0

Each program reads a few facts in random contexts and is called a few times; between two calls one
fact is changed, or changed back. Compiled (``backend="eager"``) must equal eager at every call, in
values and in the types of exceptions.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import sys
import types
import warnings

import torch
import torchsmith_tracer

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from mutation_classes import CLASSES_AND_LIBRARY
from mutation_facts import MORE, NETS, added, fact, stored
from mutation_hostile import HOSTILE
from mutation_protocols import PROTOCOLS

CLASSES = """
class M$(type):
    def __len__(cls): return 2
class B$:
    k = 2
    def m(self): return self.k + 1
class A$(B$, metaclass=M$):
    j = 3
    @property
    def p(self): return 4
    @staticmethod
    def s(): return 5
    @classmethod
    def c(cls): return 6
class C$(B$): k = 9
a$ = A$()
a$.i = 7
"""
FUNCTIONS = """
def make$(n):
    def inner(x=n): return n + x
    return inner
def h$(x=1, *, y=2): return x + 2 * y
g$ = make$(3)
"""
MODULES = """
mod$ = types.ModuleType("fuzzed$")
mod$.k = 2
exec("def f(x=1):\\n    return x + k + len([1])", vars(mod$))
sys.modules["fuzzed$"] = mod$
def imports$():
    import fuzzed$
    return fuzzed$.k
def imports_from$():
    from fuzzed$ import k
    return k
"""
CONTAINERS = """
l$ = [1, 2, 3]
d$ = {"a": 1, "b": 2}
t$ = (1, [2, 3])
s$ = {1, 2}
class Color$(enum.Enum):
    RED = 1
    BLUE = 2
key$ = Color$.RED
by_key$ = {Color$.RED: 5, Color$.BLUE: 6, int: 7, str: 8}
class D$(dict): pass
dd$ = D$(a=3)
"""
TENSORS = """
w$ = torch.ones(1)
v$ = torch.ones(1, requires_grad=True)
"""

FACTS = [
    fact(
        CLASSES,
        "a$.k",
        *added("A$.k", "11", "12"),
        *stored("B$.k", "2", "13"),
        *added("a$.k", "14"),
        *added("A$.__getattribute__", "lambda s, n: 15"),
        *added("A$.k", "property(lambda s: 16)"),
        *stored("a$.__class__", "A$", "B$"),
        *stored("A$.__bases__", "(B$,)", "(C$,)"),
        ("B$.k = '1'", "B$.k = 2"),
    ),
    fact(
        CLASSES,
        "a$.m()",
        *stored("B$.k", "2", "20"),
        *added("A$.m", "lambda s: 21"),
        *added("a$.m", "lambda: 22"),
        (
            "B$.m.__code__ = (lambda self: 23).__code__",
            "B$.m.__code__ = (lambda self: self.k + 1).__code__",
        ),
    ),
    fact(CLASSES, "a$.p", *stored("A$.p", "property(lambda s: 4)", "property(lambda s: 30)", "31")),
    fact(
        CLASSES,
        "a$.s() + A$.s()",
        *stored("A$.s", "staticmethod(lambda: 5)", "staticmethod(lambda: 40)"),
    ),
    fact(
        CLASSES,
        "a$.c()",
        *stored("A$.c", "classmethod(lambda c: 6)", "classmethod(lambda c: 41)"),
        *added("a$.c", "lambda: 42"),
    ),
    fact(
        CLASSES,
        "a$.i",
        *stored("a$.i", "7", "43", "44.5", "True"),
        *added("A$.i", "45", "property(lambda s: 46)"),
        ("del a$.i", "a$.i = 7"),
    ),
    fact(
        CLASSES,
        "getattr(a$, 'q', 1)",
        *added("A$.__getattr__", "lambda s, n: 50"),
        *added("B$.q", "51"),
        *added("a$.q", "52"),
    ),
    fact(
        CLASSES,
        "hasattr(a$, 'r') + hasattr(A$, 'r')",
        *added("B$.r", "1"),
        *added("a$.r", "1"),
        *added("M$.r", "1"),
    ),
    fact(CLASSES, "A$.j", *stored("A$.j", "3", "60"), *added("M$.j", "property(lambda c: 61)")),
    fact(
        CLASSES,
        "getattr(A$, 'z', 1)",
        *added("M$.z", "62"),
        *added("B$.z", "63"),
        *added("M$.__getattr__", "lambda c, n: 64"),
    ),
    fact(CLASSES, "len(A$)", *stored("M$.__len__", "lambda c: 2", "lambda c: 65")),
    fact(
        CLASSES,
        "bool(a$) + (a$ == 1)",
        *added("A$.__bool__", "lambda s: False"),
        *added("B$.__len__", "lambda s: 0"),
        *added("A$.__eq__", "lambda s, o: True"),
    ),
    fact(
        CLASSES,
        "isinstance(a$, B$) + 2 * isinstance(a$, C$)",
        *stored("A$.__bases__", "(B$,)", "(C$,)"),
        *stored("a$.__class__", "A$", "C$"),
    ),
    fact(
        CLASSES,
        "A$().k",
        *added("A$.__init__", "lambda s: setattr(s, 'k', 70)"),
        *added("B$.__init__", "lambda s: setattr(s, 'k', 71)"),
        *added("A$.__new__", "staticmethod(lambda c: C$())"),
    ),
    fact(
        CLASSES,
        "len(vars(a$)) + sum(n[0] != '_' for n in vars(A$))",
        *added("a$.n", "1"),
        *added("A$.n", "1"),
    ),
    fact(CLASSES, "len(type(a$).__name__)", *stored("A$.__name__", "'A'", "'Abc'")),
    fact(CLASSES, "len(a$.__doc__ or '')", *stored("A$.__doc__", "None", "'text'")),
    fact(
        "class Ab$(abc.ABC): pass\nclass Ac$: pass\nac$ = Ac$()",
        "isinstance(ac$, Ab$)",
        ("Ab$.register(Ac$)", ""),
    ),
    fact(
        "class S$:\n    __slots__ = ('k',)\ns_$ = S$()",
        "getattr(s_$, 'k', 1)",
        *added("s_$.k", "75", "76"),
    ),
    fact(
        "class E$:\n    def __get__(self, o, c): return 5\nclass F$: k = E$()\nf_$ = F$()\n"
        "vars(f_$)['k'] = 2",
        "f_$.k",
        *added("E$.__set__", "lambda s, o, v: None"),
        *stored("E$.__get__", "lambda s, o, c: 5", "lambda s, o, c: 80"),
    ),
    fact(
        "class I$:\n    def __add__(self, o): return 5\nclass J$(I$): pass\ni_$ = J$()",
        "(i_$ + 1)",
        *stored("I$.__add__", "lambda s, o: 5", "lambda s, o: 90"),
        *added("J$.__add__", "lambda s, o: 91"),
    ),
    fact(
        "class U$:\n    def m(self): return 1\nclass V$(U$):\n"
        "    def m(self): return super().m() + 10\nclass W$(V$): pass\nu_$ = W$()",
        "u_$.m()",
        *stored("U$.m", "lambda s: 1", "lambda s: 2"),
        *added("W$.m", "lambda s: 3"),
    ),
    fact(
        FUNCTIONS,
        "h$()",
        *stored("h$.__defaults__", "(1,)", "(7,)", "None"),
        *stored("h$.__kwdefaults__", "{'y': 2}", "{'y': 8}", "None"),
        ("h$.__kwdefaults__['y'] = 9", "h$.__kwdefaults__['y'] = 2"),
        (
            "h$.__code__ = (lambda x=1, *, y=2: x).__code__",
            "h$.__code__ = (lambda x=1, *, y=2: x + 2 * y).__code__",
        ),
    ),
    fact(
        FUNCTIONS,
        "g$()",
        *stored("g$.__closure__[0].cell_contents", "3", "9"),
        *stored("g$.__defaults__", "(3,)", "(10,)"),
        *stored("g$", "make$(3)", "make$(5)"),
    ),
    fact(
        FUNCTIONS,
        "getattr(h$, 'n', 1) + len(h$.__name__)",
        *added("h$.n", "4"),
        *stored("h$.__name__", "'h'", "'other'"),
    ),
    fact(
        FUNCTIONS + "q$ = functools.partial(h$, y=5)",
        "q$()",
        *stored("q$", "functools.partial(h$, y=5)", "functools.partial(h$, 2, y=6)"),
        ("q$.keywords['y'] = 7", "q$.keywords['y'] = 5"),
    ),
    fact(
        "K$ = 2",
        "K$",
        *stored("K$", "2", "5", "5.5", "True"),
        ("del K$", "K$ = 2"),
        ("builtins.K$ = 3; del K$", "K$ = 2; del builtins.K$"),
    ),
    fact("", "abs(-3)", *added("abs", "lambda n: 50")),
    fact("", "len(oct(9))", *stored("builtins.oct", "real_oct", "lambda n: 'xxxxxx'")),
    fact("", "globals().get('N$', 3) + ('N$' in globals())", *added("N$", "6")),
    fact(
        MODULES,
        "mod$.k + getattr(mod$, 'j', 1)",
        *stored("mod$.k", "2", "9"),
        *added("mod$.j", "8"),
        *added("mod$.__getattr__", "lambda n: 7"),
    ),
    fact(
        MODULES,
        "mod$.f()",
        *stored("mod$.k", "2", "9"),
        *added("mod$.len", "lambda x: 9"),
        *stored("mod$.f.__defaults__", "(1,)", "(4,)"),
    ),
    fact(
        MODULES,
        "imports$()",
        *stored("mod$.k", "2", "9"),
        ("sys.modules['fuzzed$'] = types.SimpleNamespace(k=12)", "sys.modules['fuzzed$'] = mod$"),
    ),
    fact(MODULES, "imports_from$()", *stored("mod$.k", "2", "9"), ("del mod$.k", "mod$.k = 2")),
    fact(
        "",
        "int(os.environ.get('FUZZ$', '1')) + ('FUZZ$' in os.environ)",
        *added("os.environ['FUZZ$']", "'5'", "'6'"),
    ),
    fact(
        "",
        "len(sys.argv)",
        *stored("sys.argv", "real_argv", "[1] * 9"),
        ("sys.argv.append(1)", "sys.argv.pop()"),
    ),
    fact("", "math.floor(2.5)", *stored("math.floor", "real_floor", "lambda n: 30")),
    fact("", "copy.copy([2])[0]", *stored("copy.copy", "real_copy", "lambda n: [31]")),
    fact(CONTAINERS, "sum(l$)", ("l$.append(4)", "l$.pop()"), *stored("l$[1]", "2", "9")),
    fact(CONTAINERS, "d$['a'] + len(d$)", *stored("d$['a']", "1", "7"), *added("d$['z']", "1")),
    fact(CONTAINERS, "d$.get('z', 5) + sum(d$.values())", *added("d$['z']", "1")),
    fact(
        CONTAINERS,
        "t$[0] + t$[1][0]",
        *stored("t$[1][0]", "2", "8"),
        *stored("t$", "(1, [2, 3])", "(5, [6])"),
    ),
    fact(CONTAINERS, "(3 in s$) + len(s$)", ("s$.add(3)", "s$.discard(3)")),
    fact(
        CONTAINERS,
        "dd$.get('a', 1) + len(dd$)",
        *stored("dd$['a']", "3", "4"),
        *added("dd$['b']", "1"),
        *added("D$.get", "lambda s, k, d: 60"),
        *added("D$.__len__", "lambda s: 61"),
    ),
    fact(
        CONTAINERS,
        "by_key$[key$]",
        *stored("key$", "Color$.RED", "Color$.BLUE", "int", "str"),
        *stored("by_key$[Color$.RED]", "5", "9"),
    ),
    fact(
        CONTAINERS,
        "key$.value + (key$ is Color$.RED) + len(key$.name)",
        *stored("key$", "Color$.RED", "Color$.BLUE"),
        *stored("Color$.RED._value_", "1", "70"),
    ),
    fact(
        NETS,
        "net$(x)",
        *stored("net$.scale", "2.0", "3.0", "4"),
        (
            "net$.lin.weight = nn.Parameter(torch.full((1, 1), 5.0))",
            "net$.lin.weight = nn.Parameter(torch.ones(1, 1))",
        ),
        ("net$.lin.weight.data.fill_(7)", "net$.lin.weight.data.fill_(1)"),
        ("net$.lin.weight.requires_grad_(False)", "net$.lin.weight.requires_grad_(True)"),
        *stored("net$.act", "nn.ReLU()", "nn.Tanh()", "nn.Identity()"),
        *stored("net$.buf", "torch.ones(1)", "torch.zeros(1)"),
        ("hook$ = net$.lin.register_forward_hook(lambda m, a, o: o * 3)", "hook$.remove()"),
        (
            "hook$ = nn.modules.module.register_module_forward_pre_hook(lambda m, a: None)",
            "hook$.remove()",
        ),
        ("vars(net$.lin)['weight'] = torch.full((1, 1), 9.0)", "del vars(net$.lin)['weight']"),
        ("net$.forward = lambda x: x * 40", "del net$.forward"),
        *stored("Net$.forward", "Net$.forward", "lambda s, x: x * 41"),
        *stored("nn.Linear.forward", "real_linear_forward", "lambda s, x: x * 42"),
        *stored("F.linear", "real_linear", "lambda x, w, b: x * 43"),
        *stored("nn.ReLU.forward", "real_relu_forward", "lambda s, x: x * 44"),
        *added("nn.ReLU.__call__", "lambda s, x: x * 45"),
    ),
    fact(
        NETS,
        "net$.training + hasattr(net$, 'extra') + len(list(net$.children()))",
        ("net$.eval()", "net$.train()"),
        *added("net$.extra", "1", "nn.ReLU()"),
    ),
    fact(
        TENSORS,
        "(2 if x.is_leaf else 3)",
        ("x_grad[0] = 'leaf'", "x_grad[0] = ''"),
        ("x_grad[0] = 'made'", "x_grad[0] = ''"),
    ),
    fact(
        TENSORS,
        "(x.requires_grad + 2 * (x.grad_fn is None))",
        ("x_grad[0] = 'leaf'", "x_grad[0] = ''"),
        ("x_grad[0] = 'made'", "x_grad[0] = ''"),
    ),
    fact(
        TENSORS,
        "w$.sum() * w$.dim()",
        *stored("w$", "torch.ones(1)", "torch.zeros(2)", "torch.ones(1, dtype=torch.float64)"),
        ("w$.mul_(3)", "w$.div_(3)"),
        ("w$.tag = 1", "del w$.tag"),
    ),
    fact(
        TENSORS,
        "(v$.grad is None) + getattr(w$, 'tag', 1)",
        *stored("v$.grad", "None", "torch.ones(1)"),
        *added("w$.tag", "5"),
    ),
    fact(TENSORS, "({id(w$): 2}.get(id_of$, 3))", *stored("w$", "w0$", "torch.ones(1)"))._replace(
        setup=TENSORS + "w0$ = w$\nid_of$ = id(w$)"
    ),
    fact(
        "",
        "torch.is_grad_enabled() + 2 * torch.is_inference_mode_enabled()",
        ("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
    ),
    fact(
        "",
        "torch.backends.cudnn.benchmark + 2 * torch.backends.mkldnn.enabled",
        *stored("torch.backends.cudnn.benchmark", "False", "True"),
        ("torch._C._set_mkldnn_enabled(False)", "torch._C._set_mkldnn_enabled(True)"),
    ),
    fact(
        "",
        "len(str(torch.get_default_dtype()))",
        ("torch.set_default_dtype(torch.float16)", "torch.set_default_dtype(torch.float32)"),
    ),
    fact(
        "",
        "torch.is_anomaly_enabled() + torch.get_num_threads()",
        ("torch.set_anomaly_enabled(True)", "torch.set_anomaly_enabled(False)"),
    ),
    fact(
        "",
        "len(str(torch.get_autocast_dtype('cpu'))) + torch.is_autocast_enabled('cpu')",
        (
            "torch.set_autocast_dtype('cpu', torch.float16)",
            "torch.set_autocast_dtype('cpu', torch.bfloat16)",
        ),
        ("torch.set_autocast_enabled('cpu', True)", "torch.set_autocast_enabled('cpu', False)"),
    ),
    fact(
        "",
        "torch.are_deterministic_algorithms_enabled() + 2 * "
        "torch.is_deterministic_algorithms_warn_only_enabled()",
        (
            "torch.use_deterministic_algorithms(True, warn_only=True)",
            "torch.use_deterministic_algorithms(False)",
        ),
    ),
    fact("", "torch.relu(x).sum()", *stored("torch.relu", "real_relu", "lambda x: x * 50")),
    fact("", "x.sigmoid()", *added("torch.Tensor.sigmoid", "lambda x: x * 51")),
    *MORE,
    *CLASSES_AND_LIBRARY,
    *HOSTILE,
    *PROTOCOLS,
]

PRELUDE = """
import abc, builtins, collections, contextlib, contextvars, copy, dataclasses, enum, functools
import inspect, itertools, math, operator, os, random, sys, threading, types, typing, weakref
import torch
import torch.nn.functional as F
from torch import nn
real_argv, real_oct, real_floor, real_copy = list(sys.argv), oct, math.floor, copy.copy
real_linear, real_linear_forward = F.linear, nn.Linear.forward
real_relu_forward, real_relu = nn.ReLU.forward, torch.relu
real_sub, real_deque, real_reduce = operator.sub, collections.deque, functools.reduce
real_missing, real_iter = collections.Counter.__missing__, nn.Sequential.__iter__
real_frelu = F.relu
x_grad = [""]
def tried(read):
    try: return read()
    except Exception as e: return len(type(e).__name__)
"""

# Where the expression stands: in the function itself, behind calls, in a loop ...
CONTEXTS = (
    "    y = y * 2 + ({read})\n",
    "    y = y * 2 + (lambda: ({read}))()\n",
    "    for _ in range(2):\n        y = y + ({read})\n",
    "    y = y + sum([({read}) for _ in range(2)])\n",
    "    try:\n        y = y + ({read})\n    except (AttributeError, NameError, TypeError):\n"
    "        y = y - 1\n",
    "    y = y + 1 if ({read}) > 4 else y - 1\n",
    "    y = y + reader$(x)\n",
)


def program(rng: random.Random, number: int) -> tuple[str, str, list[tuple[str, str]]]:
    """Setup, the function's source, and the changes that concern it."""
    setups, body, changes = [PRELUDE], "def f(x):\n    y = x\n", []
    own, one = "", FACTS[0]
    for i in range(rng.randint(1, 4)):
        if i and rng.random() < 0.4:  # the same objects once more, read in another way
            one = rng.choice([other for other in FACTS if other.setup == one.setup])
        else:
            own, one = f"_{number}_{i}", rng.choice(FACTS)
            setups.append(one.setup.replace("$", own))
        context = rng.choice(CONTEXTS).replace("reader$", f"reader_{i}")
        setups.append(f"def reader_{i}(x):\n    return ({one.read})\n".replace("$", own))
        body += context.replace("{read}", one.read).replace("$", own)
        changes += [(a.replace("$", own), b.replace("$", own)) for a, b in one.changes]
    return "\n".join(setups), body + "    return y\n", changes


def argument(kind: str) -> torch.Tensor:
    x = torch.full((1,), 2.0)
    if kind:
        x.requires_grad_()
    return x * 1 if kind == "made" else x


def outcome(f, kind: str) -> object:
    try:
        result = f(argument(kind))
    except Exception as e:
        return type(e).__name__
    return str(result.dtype), tuple(result.shape), result.detach().double().reshape(-1).tolist()


def run(seed: int) -> str | None:
    """Run one program; None, or text about what differed."""
    rng = random.Random(seed)
    setup, body, changes = program(rng, seed)
    module = types.ModuleType(f"fuzzed_program_{seed}")
    space = vars(module)
    done: list[tuple[str, str]] = []
    history: list[str] = []
    try:
        exec(compile(setup + body, module.__name__, "exec", dont_inherit=True), space)
        g = torchsmith_tracer.compile(space["f"], backend="eager")
        for call in range(rng.randint(3, 6)):
            if call and changes:
                if done and rng.random() < 0.5:
                    statement = done.pop()[1]
                else:
                    change = rng.choice(changes)
                    if change in done:
                        continue
                    done.append(change)
                    statement = change[0]
                history.append(statement)
                with contextlib.suppress(Exception):  # does not apply after another change
                    exec(statement, space)
            want = outcome(space["f"], space["x_grad"][0])
            got = outcome(g, space["x_grad"][0])
            if want != got:
                return f"seed {seed}: eager {want}, compiled {got}\n{body}\n" + "\n".join(history)
    finally:
        for _, undo in reversed(done):
            with contextlib.suppress(Exception):
                exec(undo, space)
        for name in [n for n in sys.modules if n.startswith(f"fuzzed_{seed}_")]:
            del sys.modules[name]
        torchsmith_tracer.reset()
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    wrong = 0
    for seed in range(options.seed, options.seed + options.programs):
        found = run(seed)
        if found is not None:
            wrong += 1
            print(found, end="\n\n", flush=True)
    print(f"{options.programs} programs, {wrong} mismatches")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
