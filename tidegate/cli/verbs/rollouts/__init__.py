"""The verb ``canary``: rollouts that decide."""
