"""Who calls the admin API, what each role may call, and the record of all calls."""
