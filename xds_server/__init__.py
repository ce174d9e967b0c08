"""The control server: one fleet, told to every Envoy and every picker over xDS."""
