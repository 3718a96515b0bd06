"""Torch modules and diffusion functions; nothing here knows about privacy."""
