"""The device that agents learn on beside the CPU."""

from tests.methods.conftest import device

__all__ = ["device"]
