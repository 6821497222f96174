"""Records: a book of short trainings that are judged by fixed rules, and BabyLM's suite."""
