"""What pickers report of requests and replicas, merged over pickers. Pure."""
