"""Loading and unloading models on the replicas of a pool, one operation for all of them."""
