"""The load client beside its peers: how much it can take in, what that costs, and how true its times are."""
