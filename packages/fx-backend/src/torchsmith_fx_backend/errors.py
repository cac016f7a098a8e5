"""Errors that torchsmith_fx_backend raises to its users."""
