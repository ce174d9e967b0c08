"""What each Envoy is sent in its own form: without what its build refuses, its pickers first."""
