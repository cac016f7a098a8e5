"""What looks at the frame after a break finds the user's names, all of them."""

import inspect
import sys

import pytest
import torch
import torchsmith_tracer


@torchsmith_tracer.disable
def opaque():
    return None


@torchsmith_tracer.disable
def callers_names():
    frame = inspect.currentframe()
    while frame.f_code.co_name != "f":
        frame = frame.f_back
    return sorted(frame.f_locals), frame.f_code.co_filename, frame.f_code.co_name


def by_locals():
    def f(x, k):
        y = x + 1
        z = k * 2
        opaque()
        return sorted(locals()), vars()["z"], "k" in dir()

    return f


def by_eval():
    def f(x, k):
        y = x + 1
        opaque()
        exec("w = k + 1")
        return eval("y * k + x")

    return f


def by_frame():
    def f(x, k):
        y = x + 1
        opaque()
        return sorted(n for n in sys._getframe().f_locals if not n.startswith("___")), y

    return f


def by_callee():
    def f(x, k):
        y = x + 1
        z = [y, k]
        names, file, name = callers_names()
        return [n for n in names if not n.startswith("___")], file, name, z

    return f


def in_a_loop():
    def f(x, k):
        out = []
        for i in range(2):
            t = x * i
            opaque()
            out.append(sorted(locals()))
        return out, t

    return f


@pytest.mark.parametrize("make", [by_locals, by_eval, by_frame, by_callee, in_a_loop])
def test_names_after_a_break(agree, make):
    agree(make(), torch.ones(2), 3)
