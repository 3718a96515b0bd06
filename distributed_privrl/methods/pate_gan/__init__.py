"""PATE-GAN: a generator learns from a student, and the student from noisy votes of teachers."""
