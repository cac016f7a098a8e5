"""Errors that torchsmith raises to its users."""
