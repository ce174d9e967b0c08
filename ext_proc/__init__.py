"""The picker: chooses a replica for each request and names it to Envoy (external processing)."""
