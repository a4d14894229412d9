"""Transactions of several clients over the overlay: serializable (D-TX), atomic (D-TX_NI) and planned (S-TX)."""
