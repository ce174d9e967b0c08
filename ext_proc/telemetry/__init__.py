"""What replicas say about themselves: pure dialects, and the collectors that feed them."""
