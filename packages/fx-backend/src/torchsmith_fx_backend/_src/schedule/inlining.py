"""Whether a value is worth computing again by all who read it, instead of storing it once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Read
from torchsmith_fx_backend._src.loops.registry import Pointwise, Reduction, View
from torchsmith_fx_backend._src.loops.sizes import estimate

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.schedule.facts import Facts

aten = torch.ops.aten

INLINE_COST = 9  # simple operations that may be done again rather than stored
NARROW_COST = 40  # the same where its operands are much narrower, on FAST devices
FAST = frozenset({"cuda"})
MOVED_COST = 40  # the same for a node whose one reader moves its elements
JOINED_COST = 160  # the same for all pieces of a concatenation, on FAST devices
PADDED_COST = 400  # the same where it does so only to leave a little room at an end
WINDOW_COST = 27  # the same for all that windows do again of a node which several of them read
SMALL_COST = 16  # the same for a node that is small beside its readers ...
MUCH_LARGER = 8  # ... by this factor
SMALL_VECTOR = 1 << 12  # elements; of what has more, each point of a reader may be another
SLACK = 16  # reading so small a part more is nothing against a store
FEW_REPEATS = 4  # how often a node is computed over when its one reader repeats it
JOINED = frozenset({aten.cat.default, aten.stack.default})


def windows_over(facts: Facts, node: fx.Node) -> float:
    """How many points of one reader look at the same element of ``node``, on average, where
    that is a window (pooling, resampling); 0 without such a reader."""
    most = 0.0
    for user in facts.users(node):
        rule = facts.rule(user)
        if isinstance(rule, View):
            most = max(most, windows_over(facts, user))
        elif isinstance(rule, Pointwise | Reduction) and rule.window:
            body, points = facts.body(user), estimate(ix.product(facts.space(user, rule)))
            reads = sum(type(n) is Read and body.operands[n.operand] is node for n in body.nodes)
            most = max(most, reads * points / max(estimate(facts.info(node).numel), 1))
    return most


def saves_memory(facts: Facts, node: fx.Node, leaves: Iterable[fx.Node], cost: int) -> bool:
    """Whether reading the leaves again costs no more bytes than storing the node would; on a
    GPU, where arithmetic is cheap beside them, it may take longer to save three in five."""
    info = facts.info(node)
    many = cost > INLINE_COST
    if many and (info.device.type not in FAST or cost > NARROW_COST):
        return False
    own, total = info.bytes(), sum(facts.info(leaf).bytes() for leaf in leaves)
    return 5 * total <= 2 * own if many else total <= own + own // SLACK


def saves_half(facts: Facts, node: fx.Node, leaves: Iterable[fx.Node], cost: int) -> bool:
    """Whether a GPU that computes ``node`` again for readers with calls between them loads half the
    bytes each time, and stores none: a float32 activation of what a layer gives in bfloat16."""
    users = facts.users(node)
    if cost > NARROW_COST or facts.device(node).type not in FAST or len(users) < 2:
        return False
    own, total = facts.info(node).bytes(), sum(facts.info(leaf).bytes() for leaf in leaves)
    apart = not all(facts.same_era(users[0], user) for user in users[1:])
    return apart and 2 * total <= own + own // SLACK


def looked_up_only(facts: Facts, node: fx.Node, size: int) -> bool:
    """Whether all readers look at a few of its points, at positions that they compute."""
    users = facts.users(node)
    if not users or node in facts.materialised:
        return False
    for user in users:
        rule = facts.rule(user)
        if rule is None:
            return False
        few = MUCH_LARGER * estimate(ix.product(facts.space(user, rule))) <= size
        if isinstance(rule, View):
            few = looked_up_only(facts, user, size)
        elif not facts.body(user).looks_up:
            return False
        if not few:
            return False
    return True


def budget_in_reader(facts: Facts, node: fx.Node) -> int:
    """What it may cost to compute ``node`` inside its one reader, when that is nearby and
    cannot walk the node's own space: it moves elements, reads some, or repeats them a bit."""
    users = facts.users(node)
    while len(users) == 1 and isinstance(facts.rule(users[0]), View):
        users = facts.users(users[0])
    if len(users) != 1 or not facts.same_era(users[0], node):
        return 0
    rule = facts.rule(users[0])
    if isinstance(rule, Pointwise | Reduction) and rule.window:
        return int(min(INLINE_COST, WINDOW_COST / max(windows_over(facts, node), 1)))
    if not isinstance(rule, Pointwise) or facts.try_info(users[0]) is None:
        return 0
    own, other = estimate(facts.info(node).numel), estimate(facts.info(users[0]).numel)
    if users[0].target is aten.constant_pad_nd.default and other <= own + own // SLACK:
        return PADDED_COST
    if rule.moves and (not facts.body(users[0]).looks_up or other <= own):
        if users[0].target in JOINED and facts.info(node).device.type in FAST:
            return min(MOVED_COST, JOINED_COST // len(users[0].all_input_nodes))
        return MOVED_COST
    if other < own and facts.device(node).type in FAST:  # a part, each element once at most
        return MOVED_COST
    return 2 * INLINE_COST if 1 < other / max(own, 1) <= FEW_REPEATS else 0


def small_beside_readers(facts: Facts, node: fx.Node, cost: int, leaves: Iterable[fx.Node]) -> bool:
    """Whether all readers are much larger (a scale per channel): not worth a buffer."""
    vector = estimate(facts.info(node).numel) <= SMALL_VECTOR
    if cost > (SMALL_COST if vector else INLINE_COST):
        return False
    size = max([facts.info(node).bytes(), *(facts.info(leaf).bytes() for leaf in leaves)])
    return much_larger_readers(facts, node, size, 0)


def much_larger_readers(facts: Facts, node: fx.Node, size: int, depth: int) -> bool:
    if depth > 4 or node in facts.materialised:
        return False
    users = facts.users(node)
    return bool(users) and all(much_larger(facts, user, size, depth) for user in users)


def much_larger(facts: Facts, user: fx.Node, size: int, depth: int) -> bool:
    rule = facts.rule(user)
    if isinstance(rule, View):
        return much_larger_readers(facts, user, size, depth)
    if not isinstance(rule, Pointwise) or rule.cost > SMALL_COST:
        return False
    larger = facts.info(user).bytes() >= MUCH_LARGER * size
    return larger or much_larger_readers(facts, user, size, depth + 1)
