"""Z-Image: a transformer with flow matching that reads prompts with Qwen3."""
