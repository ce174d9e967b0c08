"""The control server: publishes one fleet to all Envoys and all pickers over xDS."""
