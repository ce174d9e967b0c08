"""What the picker, the control server and the command line share; it imports nothing of theirs."""
