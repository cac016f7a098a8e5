"""Standalone bodies: lowered once for equal calls; asking whether a node fits changes nothing."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from plans import check, trace
from torchsmith_fx_backend._src.loops import body as bodies
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.nest import Nest
from torchsmith_fx_backend._src.schedule import facts as facts_module
from torchsmith_fx_backend._src.schedule import schedule_graph
from torchsmith_fx_backend._src.schedule.facts import Facts
from torchsmith_fx_backend._src.schedule.plan import Launch

X = torch.randn(3, 8)


def block(x):
    return F.gelu(F.layer_norm(x, (8,)) * 2 + 1)


def count_lowerings(monkeypatch, fn):
    counted = []

    def lower(graph, node, rule):
        counted.append(node.target)
        return bodies.lower(graph, node, rule)

    monkeypatch.setattr(facts_module, "lower", lower)
    schedule_graph(trace(fn, X))
    return len(counted)


def test_equal_blocks_are_lowered_once(monkeypatch):
    one = count_lowerings(monkeypatch, block)
    assert count_lowerings(monkeypatch, lambda x: block(block(block(x)))) == one


def test_calls_that_differ_in_a_number_do_not_share_a_body(monkeypatch):
    calls = (lambda x: x + 1, lambda x: x + 1.0, lambda x: x * 0.0, lambda x: x * -0.0)
    together = count_lowerings(monkeypatch, lambda x: tuple(f(x) for f in calls))
    assert together == len(calls)


def nest_and_softmax():
    facts = Facts(trace(lambda x: (x * 2 + 1).softmax(-1), X, decompose={}))
    scale, shift, softmax = (n for n in facts.nodes if n.op == "call_function")
    nest = Nest(facts, X.device)
    at = nest.fresh_axes(facts.info(softmax).shape)
    return facts, nest, shift, softmax, at


def test_fit_says_what_would_be_read_and_changes_nothing():
    facts, nest, shift, softmax, at = nest_and_softmax()
    fit = nest.fit(softmax, facts.rule(softmax), at)
    assert [r.op for r in fit.reads] == ["placeholder"]
    assert fit.reduced == (1,) and fit.places == (at,)
    assert (nest.nodes, nest.reads, nest.members, nest.reduced) == ([], {}, {}, None)
    nest.join(softmax, facts.rule(softmax), fit)
    assert nest.reduced == (1,) and softmax in nest.members


def test_a_node_does_not_fit_where_its_operand_is_computed_elsewhere():
    facts = Facts(trace(lambda x: (y := x.exp().sin(), y.flip(1)), X))
    *_, sine, flip = (n for n in facts.nodes if n.op == "call_function")
    nest = Nest(facts, X.device)
    at = nest.fresh_axes(facts.info(sine).shape)
    nest.join(sine, facts.rule(sine), nest.fit(sine, facts.rule(sine), at))
    assert nest.fit(flip, facts.rule(flip), at) is None
    back = (at[0], ix.sub(ix.const(7), at[1]))
    assert nest.fit(flip, facts.rule(flip), back) is not None


def test_views_of_nothing():
    empty = torch.zeros(4, 0, 2)
    for fn in (
        lambda x: x.view(0, 3) + 1,
        lambda x: x.transpose(0, 1).flatten() * 2,
        lambda x: x.unflatten(2, (1, 2)),
        lambda x: torch.cat([x.reshape(0), torch.ones(3)]),
        lambda x: x.repeat_interleave(2),
    ):
        check(fn, empty)


def test_a_changed_kernel_has_a_hash_of_its_own():
    one, other = (schedule_graph(trace(block, X)).steps for _ in range(2))
    kernel, equal = (
        next(s.kernel for s in steps if isinstance(s, Launch)) for steps in (one, other)
    )
    assert kernel is not equal and {kernel: 1} == {equal: 1}
    changed = replace(kernel, symbols=("n",))
    assert changed != kernel and hash(changed) != hash(kernel)
