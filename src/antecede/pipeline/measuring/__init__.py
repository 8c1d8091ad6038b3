"""What order cost: traffic, stamps, delays, waits and concurrency of a trace."""
