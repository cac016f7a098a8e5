"""Parameters and locals may have any names: generated code chooses its own so as not to collide."""

import time
import types

import pytest
import torch

NAMES = [
    "F",
    "SELF",
    "miss",
    "check_0",
    "body_1",
    "_F",
    "G",
    "M",
    "K0",
    "g0",
    "self",
    "type",
    "cls",
]
NAMES += [
    "type",
    "graph_1",
    "s_1",
    "make",
    "dispatch",
    "kwargs",
    "___s0",
    "___args",
    "___rest0",
    "___r0",
]

TEMPLATE = """
def plain(x, NAME=1, *, kw=2): return x * NAME + kw
def broken(x, NAME=1, *, kw=2):
    time.sleep(0)
    return x * NAME + kw
def star(*NAME, **kw): return NAME[0] * 2 + kw.get("q", 1)
def keywords(x, **NAME): return x * NAME["z"]
def keyword_only(x, *, NAME): return x * NAME
def both(x, NAME, NAME_=3): return x * NAME * NAME_
def loop(x, NAME):
    for q in range(2):
        x = x + NAME
        time.sleep(0)
    return x
class Holder:
    w = 3
    def method(NAME, x, y=2): return x * NAME.w * y
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_of_any_name_is_passed_by_position_and_by_keyword(program, name):
    space = {"time": time}
    exec(TEMPLATE.replace("NAME", name), space)

    def body(C):
        made = {n: C(f) for n, f in space.items() if isinstance(f, types.FunctionType)}
        x = torch.ones(1)
        out = [made["star"](x, q=3), made["keywords"](x, z=2), C(space["Holder"]().method)(x, y=4)]
        out += [C(space["Holder"].method)(**{name: space["Holder"](), "x": x})]
        for value in (2, 3, torch.ones(1) * 2):
            out += [made["both"](x, value), made["both"](x, value, **{f"{name}_": 4})]
            for kind in ("plain", "broken", "loop", "both"):
                out += [made[kind](x, value), made[kind](x, **{name: value})]
            out.append(made["keyword_only"](x, **{name: value}))
        return out

    program(body, broken=True)


def test_keywords_and_attributes_called_like_words_of_the_language(program):
    def body(C):
        class Box:
            pass

        def taken(**kwargs):
            time.sleep(0)
            return kwargs

        def f(x, box):
            setattr(box, "class", x * 2)
            y = getattr(box, "from") * x + getattr(box, "a b")
            delattr(box, "a b")
            return y, taken(**{"from": x, "class": 2, "a b": 3}), dict(**{"if": x})

        box = Box()
        setattr(box, "from", 3)
        setattr(box, "a b", 4)
        return C(f)(torch.ones(1), box), vars(box), C(lambda x, **k: x * k["in"])(2, **{"in": 3})

    program(body, broken=True)
