"""The ground that all rooms stand on: artifacts and stages, storage and locks, errors, random numbers from keys, worker processes."""
