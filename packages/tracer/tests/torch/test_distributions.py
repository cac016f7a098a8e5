"""``torch.distributions`` made in compiled functions, with their checks on: one graph each."""

import pytest
import torch
import torchsmith_tracer as tracer
from torch import distributions as D

ONE_GRAPH = {
    "normal": lambda m, s: (D.Normal(m, s).rsample((2,)), D.Normal(m, s).log_prob(m + 1)),
    "normal of floats": lambda m, s: m + D.Normal(0.0, 1.0).sample((3,)),
    "categorical": lambda m, s: (D.Categorical(logits=m).sample(), D.Categorical(s).entropy()),
    "lazy attributes": lambda m, s: (D.Categorical(logits=m).probs, D.Bernoulli(logits=m).variance),
    "bernoulli": lambda m, s: D.Bernoulli(logits=m).log_prob((m > 0.3).float()),
    "divergences": lambda m, s: (
        D.kl_divergence(D.Normal(m, s), D.Normal(m * 0, 1.0)),
        D.kl_divergence(D.Categorical(logits=m), D.Categorical(logits=s)),
        D.kl_divergence(D.Independent(D.Normal(m, s), 1), D.Independent(D.Normal(s, s), 1)),
    ),
    "laplace": lambda m, s: (D.Laplace(m, s).rsample((2,)), D.Laplace(m[0], s[0]).rsample()),
    "gammas": lambda m, s: (D.Beta(s, s).rsample(), D.Dirichlet(s).log_prob(s / s.sum())),
    "uniform": lambda m, s: D.Uniform(m, m + s).log_prob(m + 0.5),
    "transformed": lambda m, s: D.TransformedDistribution(
        D.Normal(m, s), [D.transforms.TanhTransform(cache_size=1)]
    ).rsample(),
    "mixture": lambda m, s: D.MixtureSameFamily(D.Categorical(logits=m), D.Normal(m, s)).mean,
    "one-hot": lambda m, s: D.OneHotCategoricalStraightThrough(logits=m).rsample(),
    "normals of many": lambda m, s: D.MultivariateNormal(m, scale_tril=torch.diag(s)).variance,
    "expanded": lambda m, s: D.Normal(m, s).expand((2, 3)).sample(),
    "wrong parameters": lambda m, s: D.Normal(m, -s).mean,
    "wrong values": lambda m, s: D.Bernoulli(logits=m).log_prob(m),
}


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name):
    def play(fn):
        seen = []
        for seed, scale in enumerate((1.0, 1.0, 2.0)):
            torch.manual_seed(seed)
            m = torch.tensor([0.1, 0.2, 0.7], requires_grad=True)
            s = torch.tensor([1.0, 2.0, 3.0], requires_grad=True) * scale
            try:
                out = fn(m, s)
            except ValueError as e:
                seen.append(str(e))
                continue
            outs = out if isinstance(out, tuple) else (out,)
            total = sum(o.sum() for o in outs)
            grads = torch.autograd.grad(total, [m, s], allow_unused=True) if total.grad_fn else ()
            seen += [*outs, *grads, torch.rand(1)]
        return seen

    fn = ONE_GRAPH[name]
    whole = not name.startswith("wrong")
    own, eager = play(tracer.compile(fn, backend="eager", fullgraph=whole)), play(fn)
    assert len(own) == len(eager)
    for mine, theirs in zip(own, eager, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs)
            assert mine.requires_grad == theirs.requires_grad
        else:
            assert mine == theirs
