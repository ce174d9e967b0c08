"""Control servers that hand over, simulated: ``world`` says how."""
