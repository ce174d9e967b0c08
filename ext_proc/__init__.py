"""The picker: chooses the replica of each request and tells Envoy (external processing)."""
