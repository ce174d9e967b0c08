"""What a picker counts for a rollout: sessions, their arms, first requests and first failures."""
