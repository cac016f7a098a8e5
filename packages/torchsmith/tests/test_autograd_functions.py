"""Random classes of ``autograd.Function``: results and gradients in compiled code are eager's.

What a class saves, returns, shares between its results and gives back as gradients is drawn; each
program runs in two steps, each with one backward pass or two.
"""

import linecache
import random

import pytest
import torch
import torchsmith

VALUES = [
    "{a} * 2", "{a}.exp()", "{a} + {b}", "{a} * {b}", "{a}.sigmoid()", "{a}.clamp(-1, 1)",
    "{a} - {b}.mean()", "{a}.clone()", "{a}.detach()", "{a}.t().contiguous().t()", "{a}[...]",
    "torch.where({a} > 0, {a}, {b})", "{a}.softmax(-1)", "{a}.cumsum(-1)", "{a} @ {b}.t() @ {b}",
]  # fmt: skip
GRADIENTS = [
    "{g}", "{g} * 2", "{g} * {s}", "{s}", "{s} * {s}", "{g}.t()", "torch.zeros_like({g})",
    "torch.ones(4, 4)", "{g}.sum(0).expand(4, 4)", "{g}.clone().mul_(3)", "{g} + {h}", "None",
    "{g}.detach()", "{g} * ctx.number", "({g} if ctx.needs_input_grad[{i}] else None)",
]  # fmt: skip
ARGUMENTS = ["x{i}", "x{i} * 2", "x{i} + 1", "x{i}.t()"]
USES = ["o[0]", "o[0] * 2", "o[0].relu()", "o[0] + o[-1].sum()", "(*o, x0 * 3)"]


def source(rng):
    """The text of a class and of ``program``, and how many arguments that takes."""
    count, results = rng.randint(1, 3), rng.randint(1, 2)
    arguments = [f"x{i}" for i in range(count)]
    values, body = list(arguments), []
    for number in range(rng.randint(1, 4)):
        drawn = rng.choice(VALUES).format(a=rng.choice(values), b=rng.choice(values))
        body.append(f"v{number} = {drawn}")
        values.append(f"v{number}")
    saved = [v for v in values if rng.random() < 0.5]
    given = [rng.choice(values[count:]) for _ in range(results)]
    if results == 2 and given[0] == given[1]:
        given[1] += ".clone()"
    if rng.random() < 0.2:
        body.append(f"ctx.set_materialize_grads({rng.random() < 0.5})")
    tangents = [f"g{i}" for i in range(results)]
    found = [
        rng.choice(GRADIENTS[: None if i else 11]).format(
            g=rng.choice(tangents), h=rng.choice(tangents), s=rng.choice(saved or tangents), i=i
        )
        for i in range(count)
    ]
    call = ", ".join(rng.choice(ARGUMENTS).format(i=i) for i in range(count))
    lines = [
        "class Drawn(torch.autograd.Function):",
        "    @staticmethod",
        f"    def forward(ctx, {', '.join(arguments)}):",
        "        ctx.number = x0.shape[0] + 1",
        *(f"        {line}" for line in body),
        f"        ctx.save_for_backward({', '.join(saved)})",
        f"        return {', '.join(given)},",
        "    @staticmethod",
        f"    def backward(ctx, {', '.join(tangents)}):",
        *(f"        {g} = torch.zeros(4, 4) if {g} is None else {g}" for g in tangents),
        f"        [{''.join(f'{s}, ' for s in saved)}*_] = ctx.saved_tensors",
        f"        return {', '.join(found)},",
        f"def program({', '.join(arguments)}):",
        f"    o = Drawn.apply({call})",
        f"    return {rng.choice(USES)}",
    ]
    return "\n".join(lines) + "\n", count


def steps(program, seed, count):
    """What can be seen of two steps; an error ends them."""
    seen = []
    for number in range(2):
        torch.manual_seed(seed + number)
        leaves = [torch.randn(4, 4, requires_grad=i == 0 or seed % 3 > 0) for i in range(count)]
        try:
            given = program(*leaves)
            results = given if isinstance(given, tuple) else (given,)
            seen += [(r.detach().clone(), r.requires_grad, r.is_leaf, r.stride()) for r in results]
            wanted = [r for r in results if r.requires_grad]
            tangents = [torch.randn_like(r) for r in wanted]
            for again in range(1 + seed % 2) if wanted else ():
                fresh = [t.clone() for t in tangents]  # eager may add to what a leaf takes over
                torch.autograd.backward(wanted, fresh, retain_graph=again < seed % 2)
        except (RuntimeError, TypeError) as error:
            return [*seen, type(error)]
        seen += [leaf.grad for leaf in leaves]
    return seen


@pytest.mark.parametrize("block", range(4))
def test_functions(block):
    for seed in range(block * 12, block * 12 + 12):
        text, count = source(random.Random(seed))
        name = f"<function {seed}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        namespace = {"torch": torch, "__name__": "drawn"}
        exec(compile(text, name, "exec"), namespace)
        program = namespace["program"]
        expected, found = (steps(f, seed, count) for f in (program, torchsmith.compile(program)))
        try:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\n{text}") from None
