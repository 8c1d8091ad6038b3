"""Explanations of violated orders: the chains and circles behind late deliveries."""
