"""Stable Diffusion 3: a transformer with flow matching that reads prompts by CLIP and T5."""
