"""PrivORL (PrivORL): a diffusion model, pre-trained on public rows, fine-tuned privately."""
