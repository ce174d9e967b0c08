"""Finds replicas by DNS, files and Kubernetes, and lets them join and leave pools."""
