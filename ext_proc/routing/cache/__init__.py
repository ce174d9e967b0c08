"""The contents of the endpoints' KV caches: prefix indexes, estimated and exact."""
