"""Pure: a fleet becomes the resources that Envoy and the pickers are sent."""
