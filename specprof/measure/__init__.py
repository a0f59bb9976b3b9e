"""How it is measured: the load client, the one loop, and what the machine did meanwhile."""
