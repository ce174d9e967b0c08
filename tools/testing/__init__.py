"""Tools about the tests, and checks that tests and targets share: faults, luck, the built site."""
