"""PrivORL (paper 000): a diffusion model, pre-trained on public rows, fine-tuned privately."""
