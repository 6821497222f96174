"""The program as its operators use it: real servers, a real worker, and what happens when something is killed."""
