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


def test_a_tensor_hashes_as_its_identity():
    def program(x):
        y = x + 1
        return hash(x) == id(x), hash(y) == id(y), hash(y) == hash(x), {hash(x): y}[id(x)]

    compiled = tracer.compile(program, backend="eager")
    for x in (torch.ones(2), torch.zeros(2)):
        assert compiled(x)[:3] == (True, True, False)
        assert torch.equal(compiled(x)[3], x + 1)


def test_whether_tensors_are_one_memory_is_asked_of_them():
    def program(x):
        return x.is_set_to(x), x.is_set_to(x.view(-1)), x.is_set_to(x.clone())

    compiled = tracer.compile(program, backend="eager")
    x = torch.ones(2)
    assert compiled(x) == program(x)
