"""The parts of the policy ``learned``: features, model, value, guard. Pure."""
