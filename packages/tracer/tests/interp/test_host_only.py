"""Functions that work on the host alone go on natively after a break, their callers compiled."""

import random
import warnings

import numpy as np
import pytest
import torch
import torchsmith_tracer


def corner(height, width, size):
    top = random.randint(0, height - size)
    left = random.randint(0, width - size)
    return top, left, random.random() < 0.5


def cropped(image):
    top, left, flipped = corner(image.shape[1], image.shape[2], 4)
    image = image[:, top : top + 4, left : left + 4]
    return image.flip(-1) if flipped else image * 2


def spans(shape, share, length):
    """As speech models draw what they mask."""
    offset = np.random.rand(1).item()
    mask = np.zeros(shape, dtype=bool)

    def count(size):
        return max(int(share * size / length + offset), 1)

    starts = [
        np.random.choice(np.arange(shape[1] - length + 1), count(shape[1]), replace=False)[:1]
        for _ in range(shape[0])
    ]
    places = np.array(starts)[:, :, None] + np.arange(length)
    np.put_along_axis(mask, places.reshape(shape[0], -1), True, -1)
    if mask.sum() > shape[0] * length:
        raise ValueError("too many")
    return mask


def masked(x):
    mask = spans(tuple(x.shape), 0.2, 2)
    return torch.where(torch.tensor(mask, device=x.device, dtype=torch.bool), 0.0, x * 2)


def drawn_factors(n):
    return [random.uniform(0.5, 1.5) for _ in range(n)]


def factors(x):
    for factor in drawn_factors(3):
        x = x * factor
    return x


def chosen(x):
    def pick(names):
        name = names[np.random.randint(len(names))]
        return {"sin": 1, "cos": 2}[name] + random.randrange(2)

    try:
        with torch.no_grad():
            return x * pick(["sin", "cos"]) + 1
    finally:
        x += 1


def seeded(fn, call, x):
    random.seed(call)
    np.random.seed(call)
    result = fn(x)
    return result, random.random(), np.random.rand()


@pytest.mark.parametrize(
    ("fn", "name", "size"),
    [(cropped, "corner", (3, 8, 9)), (masked, "spans", (2, 12)), (factors, "drawn_factors", (3,)),
     (chosen, "pick", (3,))],
)  # fmt: skip
def test_one_break_whatever_is_drawn(fn, name, size, capture):
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for call in range(10):
        a, b = torch.ones(size), torch.ones(size)
        (want, *drawn), (got, *own) = seeded(fn, call, a), seeded(compiled, call, b)
        assert torch.equal(got, want) and torch.equal(a, b)
        assert drawn == own
    breaks = compiled._torchsmith_region.log.breaks
    assert {b.name for b in breaks} == {"host-function"}
    assert len({(b.place.file, b.place.line) for b in breaks}) == 1
    assert name in str(breaks[0]) and breaks[0].resumed
    assert capture.n <= 4


def test_sizes_that_vary(capture):
    compiled = torchsmith_tracer.compile(masked, backend=capture)
    for size in (8, 10, 12, 20):
        assert torch.equal(
            seeded(compiled, size, torch.ones(3, size))[0],
            seeded(masked, size, torch.ones(3, size))[0],
        )
    assert capture.n <= 4


def test_what_it_raises_reaches_the_caller(agree):
    def refuse(n):
        if random.random() < 2:
            raise ValueError(f"never {n}")

    def f(x):
        try:
            refuse(x.shape[0])
        except ValueError as e:
            return x * len(str(e))

    def out(x):
        x += 1
        refuse(3)

    agree(f, torch.ones(3))
    agree(out, torch.ones(3))


scale = torch.tensor(2.0)


def with_tensors(n):
    return scale * random.random() + torch.ones(n)


def by_module(n):
    return torch.full((n,), random.random()).sin().cos()


class Owner:
    weight = torch.ones(3)

    def draw(self):
        return self.weight * random.random() + 1


@pytest.mark.parametrize("fn", [with_tensors, by_module, lambda n: Owner().draw()])
def test_a_function_with_tensors_is_compiled_on(fn, capture):
    def f(x):
        return x * fn(3)

    compiled = torchsmith_tracer.compile(f, backend=capture)
    for call in range(3):
        x = torch.ones(3)
        assert torch.allclose(seeded(compiled, call, x)[0], seeded(f, call, x)[0])
    assert {b.name for b in compiled._torchsmith_region.log.breaks} == {"opaque-call"}
    assert capture.n >= 2


class Hostile:
    @property
    def __class__(self):
        raise ValueError("asked")

    def __getattribute__(self, name):
        raise ValueError(name)


hostile = Hostile()


def with_hostile(n):
    return random.randint(1, n) if hostile is not None else 0


def looking(n):
    warnings.warn("of a helper", stacklevel=2)
    return random.randint(1, n)


def test_asking_runs_no_code_and_places_of_warnings_stay(capture):
    def f(x):
        return x * with_hostile(3) * looking(3)

    compiled = torchsmith_tracer.compile(f, backend=capture)
    seen = []
    for call in (f, compiled, compiled):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seen.append(seeded(call, 3, torch.ones(2))[0].tolist())
        seen.append([(w.filename, w.lineno) for w in caught])
    assert seen[:2] == seen[2:4] == seen[4:]


def test_fullgraph_says_where():
    with pytest.raises(torchsmith_tracer.errors.FullGraphError) as caught:
        torchsmith_tracer.compile(masked, fullgraph=True)(torch.ones(2, 12))
    assert caught.value.code == "TS-T015"
    assert "np.random.rand(1)" in str(caught.value)
    assert "before the compiled function" in caught.value.advice


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.int64])
@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
def test_tensors_of_arrays_of_any_layout(make, device, dtype, check):
    def f(a, x):
        made = make(a.T * 2, dtype=dtype, device=device)
        a[0, 0] = 7
        shared = make(a, dtype=dtype, device=device)
        a[0, 1] = 9
        return made, made.stride(), shared, x + 1

    check(f, np.arange(6.0, dtype=np.float32).reshape(2, 3), torch.ones(2))
