"""Ask a finished model: verbs, their commands, a server, tables of MLflow. See README.md."""
