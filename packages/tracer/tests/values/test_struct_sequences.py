"""Struct sequences (tuples of C with named fields) are read like tuples and like objects."""

import os
import sys
import time

import torch
import torchsmith_tracer

EPOCH = time.gmtime(0)
STATUS = os.stat_result(range(10))
LARGEST = torch.max(torch.arange(6.0).view(2, 3), 1)


def x():
    return torch.arange(3.0)


def test_version_checks_do_not_break(check):
    def f(t):
        t = t + 1 if sys.version_info >= (3, 11) else t - 1
        return t * sys.version_info.major, sys.version_info[:2], len(sys.version_info)

    check(f, x(), fullgraph=True, graphs=1)


def test_they_are_tuples_with_fields(check):
    def f(t):
        parts = list(EPOCH), EPOCH[1], EPOCH == (1970,), EPOCH < (2000,), isinstance(EPOCH, tuple)
        return t * EPOCH.tm_year, parts, type(EPOCH), EPOCH.tm_zone, STATUS.st_size, 7 in STATUS

    check(f, x(), fullgraph=True, graphs=1)


def test_their_text_names_the_fields(check):
    check(lambda t: (t + 1, repr(sys.version_info), str(EPOCH)), x(), fullgraph=True)


def test_results_of_torch_as_inputs(check):
    def f(t):
        values, indices = LARGEST
        return t[0] * values, LARGEST.indices + indices, LARGEST

    check(f, x(), fullgraph=True, graphs=1)


def test_another_one_in_its_place_is_seen():
    box = [time.gmtime(0)]
    run = torchsmith_tracer.compile(lambda t: t * box[0].tm_year, backend="eager")
    for seconds in (0, 10**9, 10**9, 0):
        box[0] = time.gmtime(seconds)
        assert torch.equal(run(x()), x() * box[0].tm_year)
