"""The desired state: its model, its rules, its changes and its revisions."""
