"""FLUX.2 klein: a transformer with flow matching that reads prompts with Qwen3."""
