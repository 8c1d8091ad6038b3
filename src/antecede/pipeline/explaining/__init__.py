"""Explanations of violated orders: chains of messages that overtook late deliveries, and circles of messages."""
