"""Changes of the fleet: the single writer, rollouts, and the publication of sick replicas."""
