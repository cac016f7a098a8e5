"""Numbers from ``id()``."""

import torch
import torchsmith_tracer as tracer


def test_the_identity_of_an_object_is_a_key_afterwards():
    """The number is made again where it is needed: it differs between calls."""
    table = {}

    def program(obj, x):
        table[id(obj)] = x + 1
        return id(obj)

    compiled = tracer.compile(program, fullgraph=True)
    for _ in range(2):
        obj = [1]
        assert compiled(obj, torch.ones(2)) == id(obj)
        assert torch.equal(table[id(obj)], torch.full((2,), 2.0))
