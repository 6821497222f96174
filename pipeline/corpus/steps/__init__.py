"""What happens to one document between its reader and the search for duplicates: pure functions, a file each."""
