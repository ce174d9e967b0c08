"""The desired state: model, rules, changes and revisions of the fleet."""
