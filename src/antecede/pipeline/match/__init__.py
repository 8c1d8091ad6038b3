"""Which send belongs to which delivery, one bucket of messages at a time, and the lines that matched rows make."""
