"""What a person sees in the terminal: tables, spinners, and how a command fails."""
