"""A language model's serving engine in small: real batching, real prefix cache, invented words."""
