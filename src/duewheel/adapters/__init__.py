"""duewheel in other frameworks. Each module needs its framework, which the project has already."""
