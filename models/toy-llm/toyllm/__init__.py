"""A toy LLM serving engine: real batching, a real prefix cache, generated words."""
