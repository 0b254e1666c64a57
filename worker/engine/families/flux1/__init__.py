"""FLUX.1: a transformer with flow matching that reads prompts with T5 and CLIP."""
