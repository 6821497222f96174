"""What happens to one document between its reader and the search for copies: pure functions, a file each."""
