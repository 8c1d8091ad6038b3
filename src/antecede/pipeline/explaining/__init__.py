"""What broke an order: the chains and circles that explain late deliveries."""
