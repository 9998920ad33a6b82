"""The server's API over plain HTTP, for load-balancing endpoints: the same routes as jobs have, without a queue."""
