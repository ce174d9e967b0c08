"""What the policy ``learned`` is made of: features, model, value, guard. Pure."""
