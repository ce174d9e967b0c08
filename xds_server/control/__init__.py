"""Changes of the fleet: the single writer and its rollouts."""
