"""Weak references show when objects of traced code end, across graph breaks too."""

import gc
import weakref

import pytest
import torch
import torchsmith_tracer


@torchsmith_tracer.disable
def opaque(*what):
    return len(what)


class Node:
    def __init__(self, value=None):
        self.value = value


def deleted_after_a_break(x, log):
    node = Node(x * 2)
    ref = weakref.ref(node)
    opaque(1)
    log.append(ref() is node)
    del node
    opaque(2)
    return ref() is None


def tensor_rebound_after_a_break(x, log):
    y = x * 2
    ref = weakref.ref(y)
    opaque(1)
    y = y + 1
    opaque(2)
    return y, ref() is None


def callback_in_order(x, log):
    node = Node(x)
    ref = weakref.ref(node, lambda _: log.append("ended"))
    y = x + len(log)
    log.append("before")
    del node
    log.append("after")
    return y + len(log), ref() is None


def callback_after_a_break(x, log):
    ref = weakref.ref(node := Node(x), lambda _: log.append("ended"))
    opaque(1)
    node = None
    log.append("after")
    opaque(node, ref)
    return len(log)


def finalized(x, log):
    node = Node(x)
    weakref.finalize(node, log.append, "finalized")
    log.append("made")
    node = Node(1)
    log.append("rebound")
    return x * node.value


def watched_where_the_rest_runs_natively(x, log):
    first, second = Node(x), Node(1)
    first.other = second
    weakref.finalize(first, log.append, "finalized")
    ref = weakref.ref(second, lambda _: log.append("ended"))
    del first
    log.append("deleted")
    second = None
    log.append("rebound")
    return x * 2, ref() is None


def in_a_callee(x, log):
    def helper():
        node = Node(Node(x))
        ref = weakref.ref(node.value)
        opaque(1)
        node.value = None
        return ref

    for _ in range(2):
        log.append(helper()() is None)
    return x + 1


def held_by_a_list(x, log):
    nodes = [Node(i) for i in range(3)]
    refs = [weakref.ref(node) for node in nodes]
    while nodes:
        opaque(len(nodes))
        nodes.pop()
        log.append([ref() is None for ref in refs])
    return x * len(refs)


def kept_by_the_caller(x, log):
    node = Node(x)
    ref = weakref.ref(node)
    opaque(1)
    log.append(node)
    del node
    return ref() is log[-1]


@pytest.mark.parametrize(
    "fn",
    [
        deleted_after_a_break,
        tensor_rebound_after_a_break,
        callback_in_order,
        callback_after_a_break,
        finalized,
        watched_where_the_rest_runs_natively,
        in_a_callee,
        held_by_a_list,
        kept_by_the_caller,
    ],
    ids=lambda f: f.__name__,
)
def test_ends_show_as_in_eager(fn):
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    gc.disable()
    try:
        for x in (torch.ones(2), torch.zeros(2), torch.ones(3)):
            expected, got = [], []
            results = repr(fn(x, expected)), repr(compiled(x, got))
            assert results[0] == results[1]
            assert len(got) == len(expected)
            pairs = zip(got, expected, strict=True)
            assert all(a == b for a, b in pairs if not isinstance(a, Node))
    finally:
        gc.enable()


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = Node(3)


def test_an_attribute_from_before_is_alive_whatever_new_objects_have():
    # A handle of torch refers weakly to the table of hooks of its module, and a new module has
    # tables of the same names.
    def f(x, module, made):
        handle = module.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        other = torch.nn.ModuleList() if made else None
        x = module(x)
        handle.remove()
        return module(x), other is None

    def replaced(x, holder):
        ref = weakref.ref(holder.kept)
        holder.kept = Node(4)
        return ref() is None, x + 1

    x, module = torch.ones(2), torch.nn.ReLU()
    for made in (True, False):
        compiled = torchsmith_tracer.compile(f, backend="eager", fullgraph=True)
        for _ in range(3):
            assert str(compiled(x, module, made)) == str(f(x, module, made))
            assert not module._forward_pre_hooks
    compiled = torchsmith_tracer.compile(replaced, backend="eager")
    assert compiled(x, Holder())[0] == replaced(x, Holder())[0] is True
