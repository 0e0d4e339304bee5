"""The trust models, a folder for each: who adds the noise, and what leaves a client."""
