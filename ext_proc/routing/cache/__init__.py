"""What the caches of the endpoints hold: prefix indexes, estimated and exact."""
