"""Who a client is and what it may do: tokens, passwords, nkeys, certificates; accounts; permissions."""
