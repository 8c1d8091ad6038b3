"""The cost of order in a trace: traffic, stamps, delays, waits and concurrency."""
