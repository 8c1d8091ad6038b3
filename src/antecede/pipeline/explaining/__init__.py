"""Explanations of violated orders: chains of messages that overtook late deliveries, and cycles of messages."""
