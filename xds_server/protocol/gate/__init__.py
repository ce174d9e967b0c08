"""When a stage has been answered: patience, refusals, quarantine, waves, drains."""
