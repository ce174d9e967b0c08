"""What a picker reports of requests and replicas, beside what drains and findings need."""
