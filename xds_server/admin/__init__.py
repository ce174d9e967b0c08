"""What operators may ask of the control server."""
