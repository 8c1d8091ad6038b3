"""Match each delivery with its send, one bucket of messages at a time. Then assemble lines (event lists) from the
matched rows."""
