"""Match each delivery with its send, one bucket of messages at a time, and assemble lines from the matched rows."""
