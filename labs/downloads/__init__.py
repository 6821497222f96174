"""Downloads: public texts and task data, checked and unpacked."""
