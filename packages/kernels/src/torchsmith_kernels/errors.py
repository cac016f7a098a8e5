"""Errors that torchsmith_kernels raises to its users."""
