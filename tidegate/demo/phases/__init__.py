"""The demo's phases: each takes the scene and returns a finding."""
