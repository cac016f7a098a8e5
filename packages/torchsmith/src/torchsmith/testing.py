"""What comparing two runs takes: ``same``, and inputs and state that both runs see alike."""

from torchsmith._src.repro.cases import default_dtype, unpacked
from torchsmith._src.testing.clones import (
    checkpoint_params,
    clone_input,
    clone_inputs,
    preserve_rng_state,
)
from torchsmith._src.testing.same import Leaf, Verdict, rmse, same

__all__ = [
    "Leaf",
    "Verdict",
    "checkpoint_params",
    "clone_input",
    "clone_inputs",
    "default_dtype",
    "preserve_rng_state",
    "rmse",
    "same",
    "unpacked",
]
