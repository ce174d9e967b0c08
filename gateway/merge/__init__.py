"""Many replicas' answers to one question as one answer. Pure."""
