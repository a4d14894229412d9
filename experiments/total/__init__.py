"""The experiments on stamps for total order: how large they are, and how long they take to make."""
