"""The command line, the local stack, the demo and the reporter."""
