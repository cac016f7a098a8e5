"""What the random programs do besides nesting: a few lines each, of classes, protocols, containers
and the standard library, on ``x`` and ``y`` (tensors), ``k`` (a number) and ``log``.

``$`` is a number of the snippet's own, ``#`` a small number.
"""

SNIPPETS = """
match k % 4:
    case 0 | 1 as m$: log.append(m$)
    case n$ if n$ > #: x = x + opaque(log, x, n$)
    case _: k += 1
---
match {"op": "add", "by": [k, x]}:
    case {"op": "mul"}: x = x * 2
    case {"op": str(op$), "by": [int(n$), *rest$], **more$}:
        log.append((op$, n$, len(rest$), more$))
---
point$ = Point(k, [k])
log.append(opaque(log, k, 1) and repr(point$))
match point$:
    case Point(x=0): k += 1
    case Point(a$, [b$]): log.append(a$ + b$)
---
p$ = dataclasses.replace(Point(1), x=k)
p$.items.append(k)
log.append((p$ == Point(k, [k]), p$ < Point(9), dataclasses.asdict(p$)))
---
acc$ = Account(k)
try:
    acc$.total = opaque(log, k, #) - 4
    log.append((acc$.total, acc$.twice, acc$.twice))
except ValueError as e:
    log.append(str(e))
---
with managed(log, "m$") as m$:
    log.append(m$)
    opaque(log, x, #)
    fail(log, k, #)
---
with contextlib.suppress(ValueError), managed(log, "s$"):
    fail(log, k, #)
    x = x + 1
---
with contextlib.ExitStack() as stack$:
    stack$.callback(log.append, "callback$")
    r$ = stack$.enter_context(Recorder(log, True))
    opaque(log, k, #)
    fail(log, k, #)
---
fns$ = [lambda z, i=i: z * i for i in range(3)] + [lambda z: z + k]
log.append(opaque(log, k, 0))
x = x + fns$[k % 4](y)
---
log.append([w$ := k, w$ * 2, [z$ for i in range(3) if (z$ := i * k) > #]])
if (m$ := opaque(log, k, #)) > 3: log.append(m$)
---
first$, *rest$ = [k, x, "a", *range(#)]
log.append((first$, len(rest$)))
*_, last$ = opaque(log, k, 2), k
log.append(last$)
---
table$ = collections.defaultdict(list)
for i in range(#):
    table$[(k + i) % 2].append(opaque(log, i, k))
log.append({**table$, "n": len(table$)})
---
counts$ = collections.Counter("abca")
counts$["abc"[k % 3]] += k
log.append((counts$.most_common(2), counts$["z"], opaque(log, k, 1)))
counts$.subtract("aab")
log.append(+counts$)
---
window$ = collections.deque([1, 2], maxlen=3)
window$.extend(range(k % 3))
opaque(log, k, len(window$))
window$.appendleft(x)
x = x + sum(w for w in window$ if not isinstance(w, int))
---
chain$ = collections.ChainMap({"a": k}, {"a": 1, "b": 2})
chain$["b"] = opaque(log, k, 3)
log.append(sorted(chain$.items()))
---
order$ = collections.OrderedDict(a=1, b=k, c=3)
order$.move_to_end("ab"[k % 2])
log.append((list(order$), opaque(log, k, 0), order$.popitem(last=False)))
---
def key$(v):
    if v == k: raise ValueError(f"key {v}")
    return -v
numbers$ = [1, 4, 2, 3]
try:
    numbers$.sort(key=key$)
except ValueError as e:
    log.append(str(e))
log.append((numbers$, sorted([3, 1, 2], key=lambda v: opaque(log, v, 0) % 2)))
---
items$ = [1, 2, 3, 4]
for i in items$:
    if i == k % 5: items$.remove(i)
    log.append(opaque(log, i, len(items$)))
---
try:
    d$ = {1: 1, 2: k}
    for key in d$:
        if k % 2: d$[key + 10] = opaque(log, key, 0)
    log.append(d$)
except RuntimeError as e:
    log.append(str(e))
---
m$ = Matrix(k) + Matrix(2)
log.append((m$.n, (3 + m$).n, attempt(log, lambda: m$ - 1), m$ == 3, m$ != m$, 5 in m$))
m$ += opaque(log, k, 1)
log.append((m$.n, -m$, m$[1:k], bool(m$)))
---
log.append(attempt(log, lambda: Matrix(k) + "text"))
x = x + (Matrix(1) @ x)
---
log.append((tripled(k), tripled.calls, opaque(log, k, 1), shape_of(x), shape_of(k)))
---
log.append([remembered(k % 3), remembered(1), remembered.cache_info().hits >= 0])
---
lazy$ = Lazy(k)
log.append((lazy$.value, opaque(log, k, 2), lazy$.value, "value" in vars(lazy$)))
del lazy$.value
log.append(lazy$.value)
---
log.append(list(itertools.islice(itertools.accumulate(itertools.count(k)), 3)))
pairs$ = itertools.zip_longest("ab", range(k % 4), fillvalue=None)
log.append((next(pairs$), opaque(log, k, 0), list(pairs$)))
---
a$, b$ = itertools.tee(v * 2 for v in range(3))
log.append((next(a$), opaque(log, k, 1), list(b$), list(a$)))
groups$ = [(g, len(list(v))) for g, v in itertools.groupby([1, 1, k, k], lambda v: v % 2)]
log.append(groups$)
---
def fib$(n): return n if n < 2 else fib$(n - 1) + fib$(n - 2)
log.append(functools.reduce(lambda p, q: p + opaque(log, q, p), [fib$(5), k, 1]))
---
add$ = functools.partial(opaque, log, k=#)
x = add$(x)
log.append(add$(k, k=k))
---
slot$ = Slotted(k)
slot$.a += opaque(log, k, 1)
log.append((slot$.a, attempt(log, lambda: slot$.b), attempt(log, setattr, slot$, "c", 1)))
---
log.append((f"{k:>4}|{k!r:<3}|{x.shape[0]:03d}|{opaque(log, k, 0)=}", "%s-%05.1f" % (k, k / 2)))
log.append("{0} {name} {1[0]:x}".format(k, [k + 10], name="n$".upper()))
---
box.value, box.log = opaque(log, k, 0), [*box.log, k]
log.append(globals_bumped(log))
---
class Local$(Base):
    tag = k
    def go(self): return (super().go(), self.tag, __class__.__name__)
log.append((Local$(1).go(), Local$.tag, opaque(log, k, 0), isinstance(Local$(2), Base)))
---
for v in Countdown(3, log):
    log.append(v)
    if opaque(log, v, k) > 4: break
log.append((2 in Countdown(2, log), list(zip(Countdown(2, log), "abc"))))
---
async def co$(n):
    async with Async(log) as a:
        if n > 3: raise ValueError(n)
        return [opaque(log, i, n) async for i in a]
try:
    attempt(log, co$(k).send, None)
except RuntimeError:
    log.append("runtime")
---
def both$():
    try:
        got = yield opaque(log, k, 0)
        log.append(("got", got))
        yield from (v for v in (got, k))
    except KeyError as e:
        log.append(repr(e))
        return "returned"
    finally:
        log.append("left$")
def outer$():
    result = yield from both$()
    log.append(result)
it$ = outer$()
log.append((next(it$), attempt(log, it$.send, k), attempt(log, it$.throw, KeyError("k"))))
it$.close()
---
try:
    raise ExceptionGroup("g", [ValueError(k), TypeError(1)])
except* ValueError as group$:
    log.append((len(group$.exceptions), opaque(log, k, 0)))
except* TypeError:
    log.append("type")
---
try:
    try: Raising(k)
    except ValueError as e: raise LookupError("lookup") from e
    else: log.append("made")
except LookupError as e:
    log.append((repr(e.__cause__), chain(e)))
    x = x + opaque(log, x, 1)
---
same$ = [k]
log.append((same$ is same$, [same$][0] is same$, x is y, same$ == [opaque(log, k, 0)]))
log.append(id(same$) == id(same$))
---
colour$ = Colour(k % 3)
log.append((colour$.name, colour$ is Colour.RED, opaque(log, k, 0), colour$.next().value))
log.append(Colour["BLUE"] in {colour$})
---
names$ = {"a", "b"} | {"c"} if k % 2 else {"a"}
log.append((sorted(names$), len(names$ & {"c", "d"}), opaque(log, k, 0), names$ <= {"a", "b", "c"}))
---
got$ = [opaque(log, i, k) for i in range(3) if i != k]
grid$ = {(i, j): i * j for i in got$ for j in range(2) if j < k}
log.append((grid$, [[c for c in str(r)] for r in got$], any(v > 2 for v in got$)))
---
proxy$ = Forward(Point(k))
proxy$.x = opaque(log, k, 1)
log.append((proxy$.x, attempt(log, lambda: proxy$.nothing), hasattr(proxy$, "items")))
---
def total$(*values, scale=1, **named):
    log.append((len(values), sorted(named)))
    return sum(values) * scale
x = x + total$(*[1, k], *(2,), scale=opaque(log, 1, 1), **{"n": k})
log.append(attempt(log, lambda: total$(scale=1, **{1: 2})))
""".strip().split("\n---\n")


HELPERS = """
@dataclasses.dataclass(order=True)
class Point:
    x: int = 0
    items: list = dataclasses.field(default_factory=list)


class Account:
    def __init__(self, total):
        self._total = total

    @property
    def total(self):
        return self._total

    @total.setter
    def total(self, value):
        if value < 0:
            raise ValueError(f"negative {value}")
        self._total = value

    twice = property(lambda self: self.total * 2)


@contextlib.contextmanager
def managed(log, name):
    log.append(("in", name))
    try:
        yield name
    except ValueError as e:
        log.append(("error", str(e)))
        raise
    finally:
        log.append(("out", name))


class Matrix:
    def __init__(self, n):
        self.n = n

    def __add__(self, other):
        return Matrix(self.n + other.n) if isinstance(other, Matrix) else NotImplemented

    def __radd__(self, other):
        return Matrix(other * self.n)

    def __iadd__(self, other):
        self.n += other
        return self

    def __eq__(self, other):
        return NotImplemented if isinstance(other, Matrix) else self.n == other

    def __contains__(self, n):
        return n > self.n

    def __neg__(self):
        return -self.n

    def __getitem__(self, key):
        return (key.start, key.stop)

    def __bool__(self):
        return self.n > 2

    def __matmul__(self, other):
        return other * self.n


def counted(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        wrapper.calls += 1
        return fn(*args)

    wrapper.calls = 0
    return wrapper


@counted
def tripled(n):
    return n * 3


@functools.singledispatch
def shape_of(v):
    return type(v).__name__


@shape_of.register
def _(v: torch.Tensor):
    return tuple(v.shape)


@functools.lru_cache(maxsize=2)
def remembered(n):
    return n * n


class Lazy:
    def __init__(self, n):
        self.n = n

    @functools.cached_property
    def value(self):
        self.n += 1
        return self.n


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Base:
    def __init__(self, n):
        self.n = n

    def go(self):
        return self.n


class Countdown:
    def __init__(self, n, log):
        self.n, self.log = n, log

    def __iter__(self):
        return self

    def __next__(self):
        if not self.n:
            self.log.append("stop")
            raise StopIteration
        self.n -= 1
        return self.n


class Async:
    def __init__(self, log):
        self.log, self.n = log, 2

    async def __aenter__(self):
        self.log.append("aenter")
        return self

    async def __aexit__(self, kind, *rest):
        self.log.append(("aexit", kind and kind.__name__))
        return kind is ValueError

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.n:
            raise StopAsyncIteration
        self.n -= 1
        return self.n


class Raising:
    def __init__(self, n):
        if n % 2:
            raise ValueError(f"odd {n}")


class Colour(enum.Enum):
    RED = 0
    GREEN = 1
    BLUE = 2

    def next(self):
        return Colour((self.value + 1) % 3)


class Forward:
    def __init__(self, inner):
        object.__setattr__(self, "inner", inner)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)


BUMPS = 0


def globals_bumped(log):
    global BUMPS
    BUMPS += 1
    log.append(BUMPS)
    return BUMPS
"""
