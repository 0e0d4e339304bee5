"""What masked sums cost beside a trusted server and clients that each add their own noise, over the number of clients."""
