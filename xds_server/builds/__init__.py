"""Builds of Envoy: what older ones would refuse is left out of what they are sent."""
