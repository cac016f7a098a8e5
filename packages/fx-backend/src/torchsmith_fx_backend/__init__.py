"""make_fx, loop IR, fusion, C and Triton code generation for torch.fx graphs."""
