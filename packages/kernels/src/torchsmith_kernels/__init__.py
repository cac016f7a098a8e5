"""Triton kernels as torch.library ops, usable from eager PyTorch."""
