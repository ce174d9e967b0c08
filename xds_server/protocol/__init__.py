"""The xDS protocol as pure state machines: snapshot, subscription, stream, publication."""
