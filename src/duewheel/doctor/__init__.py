"""`duewheel doctor`: examines this host and the cluster before they are relied on."""
