"""The reporter: a process beside a replica that pushes the replica's metrics to pickers."""
