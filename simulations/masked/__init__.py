"""What masked sums cost beside a trusted server and clients that each add their own noise, over numbers of clients."""
