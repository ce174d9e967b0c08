"""Bounded readers of request bytes that may be cut off: JSON, protobuf, tensors."""
