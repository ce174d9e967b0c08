"""What is done and held before a release, beside the tests."""
