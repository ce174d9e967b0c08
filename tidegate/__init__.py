"""What belongs to neither service: the command line, the local stack and the demo."""
